"""A branch on the health of a training: `dags/digits_watched.py`."""

from __future__ import annotations

import pytest

from airflow_elastic.control.runs import open_run
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS

DAG = "digits_watched"
RESPONSES = ("respond", "alarm", "save", "shrink", "stop")


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_slow_rank_is_answered_and_a_healthy_training_is_left_alone(standalone: Standalone) -> None:
    standalone.wait_for_dag(DAG)
    slow = standalone.trigger(DAG, {"epochs": 6, "step_seconds": 0, "slow_rank": 1})
    healthy = standalone.trigger(DAG, {"epochs": 1, "step_seconds": 0})

    standalone.wait_run(DAG, healthy, timeout=PATIENCE_SECONDS)
    states = {task: standalone.task_state(DAG, healthy, task) for task in ("train", "watch", *RESPONSES)}
    assert states == {"train": "success", "watch": "skipped", **dict.fromkeys(RESPONSES, "skipped")}

    standalone.wait_run(DAG, slow, timeout=PATIENCE_SECONDS)
    found = standalone.xcom(DAG, slow, "watch")
    assert [one["alarm"] for one in found["alarms"]] == ["straggler"]
    assert "rank 1 holds all others up" in standalone.task_log(DAG, slow, "alarm")
    states = {task: standalone.task_state(DAG, slow, task) for task in RESPONSES}
    assert states == {
        **dict.fromkeys(("respond", "alarm", "shrink"), "success"),
        **dict.fromkeys(("save", "stop"), "skipped"),
    }
    state = open_run(found["run_uri"]).state
    assert (state.outcome, state.attempt.workers) == ("succeeded", 1)
