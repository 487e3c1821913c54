"""Trains the promoted model on, every day. Both are measured on the same digits, and the better one is promoted.

The first run finds no promoted model: it trains from the beginning, and promotes the result.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from digits.tasks import MODEL, MODEL_URI, prepare

from airflow_elastic.operators import ElasticEvaluateOperator, ElasticPromoteOperator, ElasticTrainOperator

with DAG(
    "digits_retrain",
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    params={
        "epochs": Param(5, type="integer", minimum=1),
        "lr": Param(0.0003, type="number", exclusiveMinimum=0),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare()
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--lr", "{{ params.lr }}"),
            *("--seed", "{{ dag_run.run_after.strftime('%Y%m%d') }}"),  # another order each day
        ],
        start_from={"source": MODEL_URI, "optional": True},
        early_stop="max accuracy 3",  # epochs without a better one
        workers=2,
        min_workers=1,
        max_workers=4,
        checkpoint_every_seconds=60,
        active_deadline=timedelta(hours=1),
    )
    measure = ["digits/evaluate_digits.py", "--data", data]
    promoted = ElasticEvaluateOperator(
        task_id="evaluate_promoted", command=measure, source=MODEL_URI, optional=True
    )
    trained = ElasticEvaluateOperator(task_id="evaluate", command=measure, source=train.output["run_uri"])
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL_URI,
        source=train.output["run_uri"],
        metrics=trained.output["metrics"],
        promoted_metrics=promoted.output["metrics"],
        rule="accuracy > promoted",
        data={"uri": data},
        outlets=[MODEL],
    )
