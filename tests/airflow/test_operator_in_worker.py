"""The operator on a real Airflow where a run is driven in a worker's slot, and not by a triggerer."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.testing.airflow_rest import poll
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.tries import FOREVER, TASK, Try


@pytest.fixture(scope="module")
def workers(start: Callable[..., Try], signs: Path) -> dict[str, Try]:
    """Runs that are driven in worker slots: one for each that the harness has."""
    return {
        "done": start("elastic_worker", seconds=2),
        "robbed": start("elastic_worker", seconds=FOREVER, until=str(signs / "robbed")),
        "doomed": start("elastic_worker", seconds=FOREVER),
        "late": start("elastic_worker_timeout", seconds=FOREVER),
    }


def test_a_retry_takes_the_run_of_a_killed_worker_over(workers: dict[str, Try], signs: Path) -> None:
    """Without a run URI that outlives the try, the second try would start a second job beside the first."""
    robbed = workers["robbed"]
    robbed.wait("running")
    process = robbed.wait_ticks(1)
    worker = robbed.airflow.task(robbed.dag, robbed.run_id, TASK)["pid"]
    os.kill(int(worker), signal.SIGKILL)
    poll("a second try", lambda: robbed.number() == 2 or None, timeout=PATIENCE_SECONDS)
    taken = "is taken over: running, attempt 1"
    poll(
        "it to take the run over",
        lambda: taken in robbed.log() or None,
        timeout=PATIENCE_SECONDS,
        hint=robbed.log,
    )
    (signs / "robbed").touch()
    robbed.wait("success")
    assert {pid for _, pid in robbed.ticks()} == {process}
    assert len(robbed.run().attempts) == 1


def test_it_trains_in_a_worker_too(workers: dict[str, Try]) -> None:
    done = workers["done"]
    done.wait("success")
    log = done.log()
    assert "DEFERRED" not in log
    assert "attempt 1 submitted: 1 worker, from the beginning" in log
    assert "[rank 0] all ticks done" in log
    done.wait_gone()


def test_marking_failed_in_a_worker_ends_the_training(workers: dict[str, Try]) -> None:
    """Airflow calls on_kill inside a signal handler, and then kills: without a thread nothing could be done in it."""
    doomed = workers["doomed"]
    doomed.wait("running")
    doomed.wait_ticks(3)
    doomed.mark("failed")
    doomed.wait_gone()
    assert doomed.wait_ended().outcome == "stopped"


def test_a_timeout_in_a_worker_ends_the_training(workers: dict[str, Try]) -> None:
    late = workers["late"]
    late.wait("failed")
    assert "AirflowTaskTimeout" in late.log()
    late.wait_gone()
    assert late.wait_ended().outcome == "stopped"
