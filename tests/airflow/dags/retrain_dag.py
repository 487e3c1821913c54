"""Retraining on a schedule, as its how-to shows it: each generation begins when the last one has ended."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowSkipException
from digits.tasks import prepare

from airflow_elastic.operators import (
    ElasticEvaluateOperator,
    ElasticPromoteOperator,
    ElasticRollbackOperator,
    ElasticTrainOperator,
)

MODEL = f"{os.environ['AIRFLOW_HOME']}/retrained model"
SCRIPTS = os.path.join(os.path.dirname(__file__), "digits")

#: What is different about each generation: the last one learns nothing at such a rate.
GENERATIONS = ({"epochs": "1", "lr": "0.001"}, {"epochs": "4", "lr": "0.001"}, {"epochs": "1", "lr": "10"})


@task(multiple_outputs=True)
def planned() -> dict[str, str]:
    """The plan of this generation; skips what follows after the last one."""
    begun = Path(os.environ["AIRFLOW_HOME"]) / "generations"
    number = len(begun.read_text()) if begun.exists() else 0
    if number >= len(GENERATIONS):
        raise AirflowSkipException("all generations are done")
    with begun.open("a") as file:
        file.write("x")
    return GENERATIONS[number]


with DAG("retrain_often", schedule=timedelta(seconds=5), catchup=False, max_active_runs=1):
    data, plan = prepare(), planned()
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            f"{SCRIPTS}/train_digits.py",
            *("--data", data, "--epochs", plan["epochs"], "--lr", plan["lr"]),
        ],
        start_from={"source": MODEL, "optional": True},
        early_stop="max accuracy 2",
        workers=2,
    )
    evaluate = [f"{SCRIPTS}/evaluate_digits.py", "--data", data]
    old = ElasticEvaluateOperator(task_id="old", command=evaluate, source=MODEL, optional=True)
    plan >> old
    new = ElasticEvaluateOperator(task_id="new", command=evaluate, source=train.output["run_uri"])
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL,
        source=train.output["run_uri"],
        metrics=new.output["metrics"],
        promoted_metrics=old.output["metrics"],
        rule="accuracy > promoted",
    )

with DAG("retrain_back", schedule=None):
    ElasticRollbackOperator(task_id="back", model_uri=MODEL, why="it fails in production")
