"""A long training gives its GPUs to important ones, and has them back afterwards: `dags/digits_shared_gpus.py`."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.control.runs import Run, open_run
from airflow_elastic.testing.airflow_rest import AirflowError, poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS

LONG, URGENT, ALONE = "digits_long", "digits_urgent", "digits_alone"

#: Long enough for two important trainings: 23 steps an epoch.
EPOCHS, STEPS_OF_EPOCH, SAMPLES_OF_EPOCH = 40, 23, 1437
QUICK = {"epochs": 1, "step_seconds": 0}


def run_of(airflow: Standalone, dag: str, dag_run: str) -> Run:
    def found() -> Run | None:
        try:
            return open_run(airflow.xcom(dag, dag_run, "train", "run_uri"))
        except AirflowError:
            return None

    return poll("the training to begin", found, timeout=PATIENCE_SECONDS, hint=airflow.condition)


def stretches(run: Run) -> list[dict[str, Any]]:
    """Its parts with one number of workers each, of all attempts."""
    attempts: Any = run.status()["attempts"]
    return [one for attempt in attempts for one in attempt["stretches"] if one.get("first_step_at")]


def wait_trains(run: Run, workers: int, *, after: int = 0) -> None:
    def probe() -> bool | None:
        assert not run.state.ended, run.state.reason
        parts = stretches(run)[after:]
        return bool(parts and parts[-1]["workers"] == workers) or None

    poll(f"{workers} workers to train", probe, timeout=PATIENCE_SECONDS, hint=lambda: str(run.state.attempts))


def trained(run: Run) -> tuple[float, float]:
    """When the first and the last step of a run were done."""
    parts = stretches(run)
    return parts[0]["first_step_at"], parts[-1]["last_step_at"]


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_long_training_gives_way_to_important_ones_and_ends_well(standalone: Standalone) -> None:
    standalone.rest("POST", "pools", json={"name": "gpus", "slots": 4, "include_deferred": True})
    for dag in (LONG, URGENT, ALONE):
        standalone.wait_for_dag(dag)
    long_run = standalone.trigger(LONG, {"epochs": EPOCHS, "step_seconds": 0.1})
    long = run_of(standalone, LONG, long_run)
    wait_trains(long, 4)

    # One that fails gives the workers back, too.
    failing = standalone.trigger(URGENT, {"epochs": 1000})
    urgent = run_of(standalone, URGENT, failing)
    wait_trains(urgent, 3)
    standalone.set_task_state(URGENT, failing, "train", "failed")
    standalone.wait_run(URGENT, failing, "failed", timeout=PATIENCE_SECONDS)
    assert standalone.task_state(URGENT, failing, "give_back") == "success"
    parts = stretches(long)
    assert [one["workers"] for one in parts] == [4, 1, 4]
    assert parts[0]["last_step_at"] < trained(urgent)[0] < parts[2]["first_step_at"]

    alone = standalone.trigger(ALONE, QUICK)
    standalone.wait_run(ALONE, alone, timeout=PATIENCE_SECONDS)
    first, last = trained(run_of(standalone, ALONE, alone))
    standalone.wait_run(LONG, long_run, timeout=PATIENCE_SECONDS)
    before, after = (long.status()["attempts"])[-2:]  # type: ignore[index]
    assert before["stretches"][-1]["last_step_at"] < first <= last < after["stretches"][0]["first_step_at"]
    task = standalone.task(LONG, long_run, "train")
    assert (task["state"], task["try_number"]) == ("success", 1)

    parts = stretches(long)
    assert [one["workers"] for one in parts] == [4, 1, 4, 4]
    assert [one["from_step"] for one in parts] == [0, *(one["to_step"] for one in parts[:-1])]
    state = long.status()
    assert (state["outcome"], state["step"]) == ("succeeded", EPOCHS * STEPS_OF_EPOCH)
    samples: Any = state["samples"]
    assert samples["seen"] == EPOCHS * SAMPLES_OF_EPOCH

    # After the long training there is nothing to take, nor to give back.
    further = standalone.trigger(URGENT, QUICK)
    standalone.wait_run(URGENT, further, timeout=PATIENCE_SECONDS)
    states = [standalone.task_state(URGENT, further, task) for task in ("make_room", "train", "give_back")]
    assert states == ["skipped", "success", "skipped"]
