"""Evaluates every second checkpoint of digits_quickstart while that trains, on digits that it has not seen.

A trigger watches the folder with the runs of the task `train`. So a training in a shell is evaluated, too:

    airflow-elastic run --every-steps 30 --uri ~/airflow/elastic-runs/digits_quickstart/train/mine -- \\
        dags/digits/train_digits.py --data ~/airflow/digits/digits.npz

The accuracy is recorded with the checkpoint: `airflow-elastic checkpoint list` shows it, and `best="max accuracy"` of
other tasks finds it. A checkpoint that the run has removed meanwhile is skipped.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task
from digits.tasks import prepare

from airflow_elastic.operators import ElasticEvaluateOperator
from airflow_elastic.triggers import ElasticCheckpointEventTrigger

CHECKPOINTS = Asset(
    "digits_checkpoint",
    watchers=[
        AssetWatcher(
            name="every_second_one",
            trigger=ElasticCheckpointEventTrigger(runs_uri="digits_quickstart/train", every=2),
        )
    ],
)


@task
def saved(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
    """The checkpoints that have started this DAG run: several, if they come faster than Airflow starts DAG runs."""
    payloads = [event.extra["payload"] for event in triggering_asset_events[CHECKPOINTS]]
    return [{"source": payload["run_uri"], "step": payload["step"]} for payload in payloads]


with DAG(
    "digits_evaluate_checkpoints",
    schedule=CHECKPOINTS,
    doc_md=__doc__,
    tags=["airflow-elastic"],
) as dag:
    ElasticEvaluateOperator.partial(
        task_id="evaluate",
        command=["digits/evaluate_digits.py", "--data", prepare()],
        optional=True,
        map_index_template="step {{ task.step }}",
    ).expand_kwargs(saved())
