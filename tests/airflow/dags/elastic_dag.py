"""What tests/airflow/test_operator.py runs. `conf` says how long a run takes, what ends it, and where it is stored."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference, task
from airflow.sdk.exceptions import AirflowException

from airflow_elastic.operators import (
    ElasticCheckpointOperator,
    ElasticPruneOperator,
    ElasticScaleOperator,
    ElasticStopOperator,
    ElasticTrainOperator,
)
from airflow_elastic.sensors import (
    ElasticCapacitySensor,
    ElasticCheckpointSensor,
    ElasticHealthSensor,
    ElasticRunSensor,
)

SECONDS = "{{ dag_run.conf.get('seconds', 5) }}"
UNTIL = "{{ dag_run.conf.get('until', '') }}"
TICK: dict[str, Any] = {
    "command": ["../scripts/tick.py", "--seconds", SECONDS, f"--until={UNTIL}"],
    "launcher": "python",
    "poll_interval": 0.5,
    "grace_period": 5,
}

with DAG("elastic_train", schedule=None):
    ElasticTrainOperator(
        task_id="train",
        command=["../scripts/fit.py", "--steps", "{{ dag_run.conf.get('steps', 100) }}"],
        run_uri="{{ dag_run.conf['run_uri'] }}",
        workers=2,
        checkpoint_every_steps=20,
        poll_interval=0.5,
    )

with DAG("elastic_tick", schedule=None):
    ElasticTrainOperator(task_id="train", retries=2, retry_delay=timedelta(seconds=1), **TICK)

with DAG("elastic_worker", schedule=None):
    ElasticTrainOperator(
        task_id="train", deferrable=False, retries=1, retry_delay=timedelta(seconds=1), **TICK
    )

with DAG("elastic_worker_timeout", schedule=None):
    ElasticTrainOperator(task_id="train", deferrable=False, execution_timeout=timedelta(seconds=12), **TICK)

with DAG("elastic_deadline", schedule=None):
    # While a task is deferred Airflow does not enforce this; the run does.
    ElasticTrainOperator(task_id="train", execution_timeout=timedelta(seconds=12), **TICK)

with DAG("elastic_error", schedule=None):
    ElasticTrainOperator(
        task_id="train",
        retries=3,
        retry_delay=timedelta(seconds=1),
        **TICK | {"command": ["../scripts/tick.py", "--fail-at", "3"], "backoff_limit": 1},
    )

with DAG("elastic_mapped", schedule=None):
    ElasticTrainOperator.partial(task_id="train", launcher="python", poll_interval=0.5).expand(
        command=[["../scripts/tick.py", "--seconds", seconds] for seconds in ("2", "4")]
    )

with DAG("elastic_sensor", schedule=None):
    ElasticRunSensor(
        task_id="step", run_uri="{{ dag_run.conf['run_uri'] }}", step=30, poke_interval=1, timeout=120
    )
    ElasticRunSensor(
        task_id="checkpoint",
        run_uri="{{ dag_run.conf['run_uri'] }}",
        checkpoint=True,
        deferrable=False,
        poke_interval=1,
        timeout=120,
    )
    ElasticRunSensor(
        task_id="never", run_uri="{{ dag_run.conf['run_uri'] }}", step=10**6, poke_interval=1, timeout=120
    )

SHARED: dict[str, Any] = {"run_uri": "{{ dag_run.conf['run_uri'] }}"}

LETTER = AsyncCallback("elastic_callbacks.Letter", kwargs={"text": "{{ event.workers }} workers"})
LATE = DeadlineAlert(
    reference=DeadlineReference.DAGRUN_QUEUED_AT,
    interval=timedelta(seconds=5),
    callback=AsyncCallback("elastic_callbacks.late"),
)

with DAG("elastic_long", schedule=None, deadline=LATE):
    ElasticTrainOperator(
        task_id="train",
        command=["../scripts/fit.py", "--steps", "20000"],
        workers=2,
        max_workers=3,
        checkpoint_every_steps=20,
        poll_interval=0.5,
        on_scale=[
            "elastic_callbacks.plain",
            AsyncCallback("elastic_callbacks.Letter", kwargs={"text": "{{ event.workers }} workers"}),
        ],
        on_checkpoint=AsyncCallback("elastic_callbacks.slow", kwargs={"who": "checkpoint"}),
        on_unhealthy="elastic_callbacks.plain",
        **SHARED,
    )

# A busy scheduler fails a try whose event comes before it knows that the task is deferred: another try follows.
AGAIN: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}

with DAG("elastic_steered", schedule=None, default_args=AGAIN):
    looks: dict[str, Any] = {**SHARED, "poke_interval": 1, "timeout": 240}
    waits: dict[str, Any] = {**SHARED, "poll_interval": 1, "wait_timeout": 240}
    little = {"memory": "{{ '1Mi' }}", "cpu": "0"}
    ElasticCapacitySensor(task_id="room", workers="{{ 2 }}", worker_resources=little, poke_interval=1)
    ElasticCapacitySensor(
        task_id="no_room", worker_resources={"memory": "900Ti", "cpu": "0"}, timeout=90, soft_fail=True
    )
    ElasticHealthSensor(task_id="unsaved", unsaved=10_000, restarts=100, **looks)
    ElasticHealthSensor(task_id="still", no_progress=0.001, **looks)
    good = ElasticCheckpointSensor(task_id="good", step=20, metric="loss < {{ 1000 }}", **looks)
    good >> ElasticScaleOperator(task_id="beyond", workers=7, **waits)
    (
        good
        >> ElasticScaleOperator(task_id="scale", workers="{{ 3 }}", **waits)
        >> ElasticCheckpointOperator(task_id="save", **waits)
        >> ElasticScaleOperator(task_id="shrink", workers=2, deferrable=False, **waits)
        >> ElasticPruneOperator(task_id="prune", keep=1, **SHARED)
        >> ElasticStopOperator(task_id="stop", **waits)
        >> ElasticStopOperator(task_id="again", **waits)
    )

with DAG("elastic_taskflow", schedule=None):

    @task.elastic_train(launcher="python", poll_interval=0.5)
    def train(seconds: int, **context: Any) -> list[str]:
        return ["../scripts/tick.py", "--seconds", str(seconds)]

    train(seconds=1)

with DAG("elastic_partitions", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False):
    # As a DAG that trains on the data of a day.
    ElasticTrainOperator(
        task_id="train",
        command=["../scripts/tick.py", "--seconds", "1", "--until={{ ds }}"],
        launcher="python",
        poll_interval=0.5,
    )

with DAG("elastic_poison", schedule=None):
    # No JSON has a Decimal: in a trigger it would end the triggerer, and every one that starts after it.
    # (The operator would refuse it when it is made. It has to get there by another way.)
    ElasticTrainOperator(task_id="train", **TICK).poll_interval = Decimal("0.5")


class Unlucky(ElasticTrainOperator):
    """Fails its first try when the run has been done: what Airflow itself does once in a while."""

    def resume(self, context: Any, event: Any, run_uri: str) -> Any:
        if context["ti"].try_number == 1:
            raise AirflowException("Executor reported success, but its state is queued")
        return super().resume(context, event, run_uri)


with DAG("elastic_unlucky", schedule=None):
    Unlucky(task_id="train", retries=1, retry_delay=timedelta(seconds=1), **TICK)
