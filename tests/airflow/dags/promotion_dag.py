"""What tests/airflow/test_promotion.py runs: promotions by tasks, and DAGs that start when something was promoted."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_elastic.operators import (
    ElasticPromoteOperator,
    ElasticRollbackOperator,
)
from airflow_elastic.triggers import ElasticCheckpointEventTrigger, ElasticPromotionEventTrigger

HOME = f"{os.environ['AIRFLOW_HOME']}/promoted"
RUN, MODEL = f"{HOME}/run", f"{HOME}/models"

promoted = Asset(
    "promoted",
    watchers=[
        AssetWatcher(name="p", trigger=ElasticPromotionEventTrigger(MODEL, existing=True, poll_seconds=1.0))
    ],
)
saved = Asset(
    "saved",
    watchers=[
        AssetWatcher(name="s", trigger=ElasticCheckpointEventTrigger(RUN, existing=True, poll_seconds=1.0))
    ],
)
saved_below = Asset(
    "in a folder",
    watchers=[
        AssetWatcher(
            name="b",
            trigger=ElasticCheckpointEventTrigger(runs_uri=f"{HOME}/runs", existing=True, poll_seconds=1.0),
        )
    ],
)
made = Asset("made by a task")


@task
def told(triggering_asset_events: Any = None) -> list[Any]:
    """The payloads of all events that have started this DAG run."""
    events = [event for found in triggering_asset_events.values() for event in found]
    return [event.extra.get("payload", event.extra) for event in events]


for name, asset in (
    ("on_promotion", promoted),
    ("on_checkpoint", saved),
    ("on_folder", saved_below),
    ("on_outlet", made),
):
    with DAG(name, schedule=asset, catchup=False):
        told()

with DAG("promote", schedule=None):
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL,
        source=RUN,
        step="{{ dag_run.conf['step'] }}",
        metrics={"accuracy": "{{ dag_run.conf['accuracy'] }}"},
        rule="accuracy > promoted",
        why="{{ dag_run.conf.get('why') }}",
        outlets=[made],
    )

with DAG("promote_if_agreed", schedule=None):
    ElasticPromoteOperator(
        task_id="promote",
        model_uri=MODEL,
        source=RUN,
        step="{{ dag_run.conf['step'] }}",
        metrics={"accuracy": "{{ dag_run.conf['accuracy'] }}"},
        rule="accuracy > promoted",
        approve=True,
    )

with DAG("go_back", schedule=None):
    ElasticRollbackOperator(task_id="back", model_uri=MODEL, why="errors in production")
