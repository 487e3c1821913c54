"""What tests/airflow/test_harness.py runs: a task that ends at once, others that fail or wait, deferred."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG, task

with DAG("harness", schedule=None):

    @task
    def hello(**context: object) -> str:
        name = str(context["dag_run"].conf.get("name", "nobody"))  # type: ignore[attr-defined]
        print(f"hello {name}")  # noqa: T201
        return name

    hello()

with DAG("harness_fails", schedule=None):

    @task
    def explode() -> None:
        raise RuntimeError("on purpose")

    explode()

with DAG("harness_mapped", schedule=None):

    @task
    def double(number: int) -> int:
        return number * 2

    double.expand(number=[1, 2])

with DAG("harness_defer", schedule=None):
    TimeDeltaSensor(task_id="wait", delta=timedelta(seconds=30), deferrable=True)

with DAG("harness_defer_long", schedule=None):
    TimeDeltaSensor(task_id="wait", delta=timedelta(hours=1), deferrable=True)
