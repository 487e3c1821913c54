"""Two trainings that choose their number of workers themselves.

- `digits_nights` has three workers at night and one by day. The trigger form can name other hours, as cron expressions.
- `digits_free_capacity` uses what is free, gives it back to work of a higher priority, and is done by six in the
  morning. It stops growing where a further worker adds less than half of a worker's share.

Each decision is an event of the run, with its reason: `airflow-elastic events URI`, or the run's page.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param
from digits.tasks import prepare

from airflow_elastic.operators import ElasticTrainOperator


def dag(dag_id: str, **params: Param) -> DAG:
    step_seconds = Param(0.06, type="number", minimum=0, description="a step takes this long at least")
    epochs = Param(60, type="integer", minimum=1)
    every: dict[str, Any] = {"epochs": epochs, "step_seconds": step_seconds, **params}
    return DAG(dag_id, schedule=None, params=every, doc_md=__doc__, tags=["airflow-elastic"])


def train(data: Any, policy: dict[str, Any]) -> ElasticTrainOperator:
    return ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--step-seconds", "{{ params.step_seconds }}"),
        ],
        workers=1,
        max_workers=3,
        scaling={"policy": policy},
        checkpoint_every_seconds=60,
        active_deadline=timedelta(days=1),
    )


with dag(
    "digits_nights",
    night_begins=Param("0 20 * * *", type="string", description="cron, in UTC"),
    night_ends=Param("0 6 * * *", type="string", description="cron, in UTC"),
):
    night = {"start": "{{ params.night_begins }}", "end": "{{ params.night_ends }}", "workers": 3}
    # The number of workers matters more here than the time that a step takes.
    train(
        prepare(),
        {"windows": [night], "must_pay": False, "interval_seconds": 5, "up_seconds": 10, "down_seconds": 10},
    )

with dag("digits_free_capacity"):
    train(prepare(), {"capacity": {}, "done_by": "06:00", "worth": {"efficiency": 0.5}})
