"""Trains a small network on handwritten digits, measures it, and promotes it if it is the best so far.

While `train` is running, kill one of its processes, or ask for more workers with `airflow-elastic scale`. Training goes
on from its newest checkpoint, and every sample still counts once.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from digits.tasks import MODEL, MODEL_URI, prepare

from airflow_elastic.operators import ElasticEvaluateOperator, ElasticPromoteOperator, ElasticTrainOperator

with DAG(
    "digits_quickstart",
    schedule=None,
    params={
        "epochs": Param(30, type="integer", minimum=1),
        "step_seconds": Param(
            0.06,
            type="number",
            minimum=0,
            description="a step takes this long at least, so that one can watch",
        ),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",  # beside this file
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--step-seconds", "{{ params.step_seconds }}"),
        ],
        workers=2,
        min_workers=1,
        max_workers=4,
        checkpoint_every_steps=30,
        active_deadline=timedelta(hours=1),
    )
    evaluate = ElasticEvaluateOperator(
        task_id="evaluate",
        command=["digits/evaluate_digits.py", "--data", data],
        source=train.output["run_uri"],
    )
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL_URI,
        source=train.output["run_uri"],
        metrics=evaluate.output["metrics"],
        rule="accuracy > promoted",
        data={"uri": data},
        outlets=[MODEL],
    )
