"""A long training uses four GPUs as long as nobody else needs them. Important trainings take them, and give them back.

The pool `gpus` says how many there are: `airflow pools set gpus 4 "for training" --include-deferred`. A slot of it is a
GPU that a training keeps.

- `digits_long` keeps one, and trains on all four. The other three are lent to it.
- `digits_urgent` keeps three. It asks the long training to go on with one worker, and gives the three back in the end,
  also if it has failed. `digits_alone` keeps all four. It stops the long training, which saves first. The task of the
  long training is then queued again like any other, and goes on from the checkpoint when its slot is free.
- Important trainings wait in the pool for each other, by their `priority_weight`.

If other programs use the machines, too, let an `ElasticCapacitySensor` wait for room before each training.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param
from digits.tasks import HOME, prepare

from airflow_elastic.operators import ElasticScaleOperator, ElasticStopOperator, ElasticTrainOperator

GPUS, SHARED = "gpus", 3
LONG = f"{HOME}/long"


def dag(dag_id: str, epochs: int, **more: Any) -> DAG:
    step_seconds = Param(0.06, type="number", minimum=0, description="a step takes this long at least")
    params = {"epochs": Param(epochs, type="integer", minimum=1), "step_seconds": step_seconds}
    return DAG(dag_id, schedule=None, params=params, doc_md=__doc__, tags=["airflow-elastic"], **more)


def train(data: Any, **more: Any) -> ElasticTrainOperator:
    return ElasticTrainOperator(
        task_id="train",
        command=[
            "digits/train_digits.py",
            *("--data", data),
            *("--epochs", "{{ params.epochs }}"),
            *("--step-seconds", "{{ params.step_seconds }}"),
        ],
        checkpoint_every_seconds=60,
        active_deadline=timedelta(hours=1),
        pool=GPUS,
        **more,
    )


with dag("digits_long", epochs=60, max_active_runs=1):
    # It begins when nobody else trains: for a moment this task needs all slots.
    data = prepare.override(pool=GPUS, pool_slots=4)()
    train(data, run_uri=LONG, workers=4, min_workers=1, requeue_on_stop=True)

with dag("digits_urgent", epochs=10):
    make_room = ElasticScaleOperator(task_id="make_room", run_uri=LONG, workers=1, optional=True)
    urgent = train(
        prepare(), workers=SHARED, pool_slots=SHARED, priority_weight=10, trigger_rule="none_failed"
    )
    # It waits for free slots itself: another important training may need the GPUs next.
    give_back = ElasticScaleOperator(
        task_id="give_back", run_uri=LONG, workers=4, optional=True, pool=GPUS, pool_slots=SHARED
    )
    make_room >> urgent >> give_back.as_teardown()

with dag("digits_alone", epochs=10):
    data = prepare()
    # The training is in the queue before the slot of the long one is free. So no other task gets that slot.
    train(data, workers=4, pool_slots=4, priority_weight=10)
    data >> ElasticStopOperator(task_id="take_all", run_uri=LONG, optional=True)
