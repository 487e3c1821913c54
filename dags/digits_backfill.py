"""Trains on the digits of one month after the other, each time from the model so far.

This is a backfill of a year:

    airflow dags unpause digits_backfill
    airflow backfill create --dag-id digits_backfill --from-date 2025-01-01 --to-date 2025-12-31 \\
        --max-active-runs 12 --reprocess-behavior failed

A month is trained when the month before it is done. If a month fails, those after it wait: clear it, and all go on.
Those that wait count as active, but use no slot. So --max-active-runs is the number of months, or a month that was
cleared could not begin.

All models are measured on the same digits, and only a better one is promoted. So a month that is trained again, at any
time, starts from the newest model, and never replaces it with a worse one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, CronDataIntervalTimetable, Param
from digits.tasks import HOME, prepare

from airflow_elastic.operators import ElasticEvaluateOperator, ElasticPromoteOperator, ElasticTrainOperator

MODEL_URI = f"{HOME}/model_by_month"

with DAG(
    "digits_backfill",
    schedule=CronDataIntervalTimetable("0 0 1 * *", timezone="UTC"),  # a month, when it is over
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    end_date=datetime(
        2025, 12, 31, tzinfo=UTC
    ),  # there are digits of a year; without it the schedule goes on
    catchup=False,
    params={
        "epochs": Param(20, type="integer", minimum=1),
        "lr": Param(0.001, type="number", exclusiveMinimum=0),
    },
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    data = prepare("{{ data_interval_start.month }}")
    train = ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--lr", "{{ params.lr }}"),
        ],
        start_from={"source": MODEL_URI, "optional": True},
        active_deadline=timedelta(hours=1),
        wait_for_downstream=True,  # until the month before is trained, evaluated, and promoted or not
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
    )
