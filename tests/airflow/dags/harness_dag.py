"""What tests/airflow/test_harness.py runs: one task that ends at once, and one that waits for a file, deferred."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG, task

with DAG("harness", schedule=None):

    @task
    def hello() -> str:
        print("hello from the harness")
        return "hello"

    hello()

with DAG("harness_defer", schedule=None):
    TimeDeltaSensor(task_id="wait", delta=timedelta(seconds=25), deferrable=True)

with DAG("harness_defer_long", schedule=None):
    TimeDeltaSensor(task_id="wait", delta=timedelta(hours=1), deferrable=True)
