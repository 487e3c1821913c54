"""What tests/airflow/test_operator.py runs. Every DAG is one task; conf says how long it trains and where."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_elastic.operators import ElasticTrainOperator

SCRIPTS = Path(__file__).parent.parent / "scripts"

with DAG("elastic_train", schedule=None):
    ElasticTrainOperator(
        task_id="train",
        command=["../scripts/fit.py", "--steps", "{{ dag_run.conf.get('steps', 100) }}"],
        workers=2,
        checkpoint_every_steps=20,
        poll_interval=0.5,
    )
