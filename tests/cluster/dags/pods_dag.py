"""What tests/cluster/test_two_triggerers.py runs; `conf` says what, and where."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG

from airflow_elastic.operators import ElasticTrainOperator

with DAG("elastic_pods", schedule=None, render_template_as_native_obj=True):
    ElasticTrainOperator(
        task_id="train",
        command="{{ dag_run.conf['command'] }}",
        run_uri="{{ dag_run.conf['run_uri'] }}",
        engine="job",
        engine_options="{{ dag_run.conf['engine_options'] }}",
        launcher="python",
        workers=2,
        poll_interval=0.5,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
