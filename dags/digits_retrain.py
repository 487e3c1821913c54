"""Trains the promoted model on, every day, and promotes the result if it is better."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from digits.tasks import evaluate, prepare, promote, promoted

from airflow_elastic.operators import ElasticTrainOperator

with DAG(
    "digits_retrain",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    params={"epochs": Param(5, type="integer", minimum=1)},
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    model = promoted()
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--init-from", model["weights"]),
            *("--epochs", "{{ params.epochs }}"),
            *("--lr", "0.0003"),
            *("--seed", "{{ dag_run.run_after.strftime('%Y%m%d') }}"),  # another order each day
        ],
        workers=2,
        min_workers=1,
        max_workers=4,
        checkpoint_every_seconds=60,
        active_deadline=timedelta(hours=1),
    )
    promote(evaluate(train.output["run_uri"], data))
