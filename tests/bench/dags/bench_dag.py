"""As many deferred runs as `conf` says, none of which ends by itself."""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_elastic.operators import ElasticTrainOperator

ENGINE = "airflow_elastic.testing.fake_engine:FakeEngine"

with DAG("bench_deferred", schedule=None, max_active_tasks=64):

    @task
    def commands(dag_run=None) -> list[list[str]]:  # type: ignore[no-untyped-def]
        return [["train.py", str(number)] for number in range(dag_run.conf["runs"])]

    ElasticTrainOperator.partial(
        task_id="train",
        engine=ENGINE,
        workers=2,
        procs_per_worker=4,
        working_dir="/",
        run_uri="{{ dag_run.conf['root'] }}/run-{{ ti.map_index }}",
    ).expand(command=commands())
