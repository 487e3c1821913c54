"""Watches the health of a training, and does something about what it finds.

`watch` runs beside `train`. If it finds something, `respond` chooses tasks by that. If the training ends before,
`watch` is skipped, and all that follows it. To see a response, give `slow_rank` the number of a rank: 0 or 1.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from digits.tasks import HOME, prepare

from airflow_elastic.operators import (
    ElasticCheckpointOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
    ElasticTrainOperator,
)
from airflow_elastic.sensors import ElasticHealthSensor

RUN = f"{HOME}/watched/{{{{ dag_run.run_after.strftime('%Y%m%dT%H%M%S%f') }}}}"


@task.branch
def respond(found: Any) -> list[str]:
    """The tasks that help against what is wrong."""
    alarms = {one["alarm"] for one in found["alarms"]}
    if "restarts" in alarms:
        return ["alarm", "stop"]  # it only costs
    if "straggler" in alarms:
        return ["alarm", "shrink"]  # without its last worker, until that is replaced
    return ["alarm", "save"]


@task
def alarm(found: Any) -> None:
    """A notifier of yours belongs here."""
    for one in found["alarms"]:
        logging.getLogger("airflow.task").warning("%s: %s", found["run_uri"], one["text"])


with DAG(
    "digits_watched",
    schedule=None,
    params={
        "epochs": Param(20, type="integer", minimum=1),
        "step_seconds": Param(0.1, type="number", minimum=0),
        "slow_rank": Param(-1, type="integer", description="number of a rank that is slow; -1: none"),
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
            *("--step-seconds", "{{ params.step_seconds }}"),
            *("--slow-rank", "{{ params.slow_rank }}"),
        ],
        run_uri=RUN,
        workers=2,
        min_workers=1,
        checkpoint_every_seconds=300,
        active_deadline=timedelta(hours=1),
    )
    watch = ElasticHealthSensor(
        task_id="watch",
        run_uri=RUN,
        straggler=True,
        no_progress=timedelta(minutes=3),
        restarts=3,
        throughput_below=0.5,
        unsaved=timedelta(minutes=15),
        poke_interval=5,
    )
    data >> watch
    save = ElasticCheckpointOperator(
        task_id="save", run_uri=RUN, optional=True
    )  # it may have ended meanwhile
    shrink = ElasticScaleOperator(task_id="shrink", run_uri=RUN, workers=1, optional=True)
    stop = ElasticStopOperator(task_id="stop", run_uri=RUN)
    respond(watch.output) >> [alarm(watch.output), save, shrink, stop]
