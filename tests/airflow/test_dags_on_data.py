"""The DAGs that come with the project, for data that comes and goes: run for real, as users copy them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.models.choose import choose
from airflow_elastic.control.runs import Run, open_run
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.models import Promotion
from airflow_elastic.testing.airflow_rest import AirflowError, poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS, until

DAGS = Path(__file__).parents[2] / "dags"
BACKFILL, SCRATCH, EVALUATE = "digits_backfill", "digits_scratch", "digits_evaluate_checkpoints"


# -- a month of data after the other ---------------------------------------------------------------------------------


class Months:
    """The DAG runs of a backfill, and what they have promoted."""

    def __init__(self, airflow: Standalone) -> None:
        self.airflow = airflow
        self.model: Store = open_store(str(airflow.home / "digits/model_by_month"))

    def backfill(self, first: int, last: int, **options: object) -> list[str]:
        """Start it, and return its DAG runs, the first month first."""
        body = {
            "dag_id": BACKFILL,
            "from_date": f"2025-{first:02}-01T00:00:00Z",
            "to_date": f"2025-{last:02}-28T00:00:00Z",
            "max_active_runs": 12,
            "reprocess_behavior": "failed",
            **options,
        }
        assert self.airflow.rest("POST", "backfills", json=body)["completed_at"] is None
        return self.made()

    def made(self) -> list[str]:
        """The DAG runs of all backfills, the first month first."""
        asked = {"run_type": "backfill", "order_by": "logical_date", "limit": 100}
        runs = self.airflow.rest("GET", f"dags/{BACKFILL}/dagRuns", params=asked)["dag_runs"]
        return [str(run["dag_run_id"]) for run in runs]

    def over(self) -> bool | None:
        """Whether no backfill goes on; None if one does."""
        found = self.airflow.rest("GET", "backfills", params={"dag_id": BACKFILL})["backfills"]
        return all(one["completed_at"] for one in found) or None

    def moment(self, run_id: str, task: str, field: str) -> datetime:
        return datetime.fromisoformat(self.airflow.task(BACKFILL, run_id, task)[field])

    def check_order(self, run_ids: list[str]) -> None:
        """Each month was trained when the one before it was done, and from the newest model of that time."""
        for before, after in pairwise(run_ids):
            assert self.moment(after, "train", "start_date") >= self.moment(before, "promote", "end_date")
        number = None
        for month, run_id in enumerate(run_ids, start=1):
            uri = self.airflow.xcom(BACKFILL, run_id, "train", "run_uri")
            state = open_run(uri).state
            assert state.spec.command[2].endswith(f"months/{month:02}.npz")
            origin = state.origin
            assert (origin.promotion if origin else None) == number
            number = next((one.number for one in self.promoted() if one.run == uri), number)

    def promoted(self) -> list[Promotion]:
        """All promotions so far: each is better than the one before."""
        found = promotions.history(self.model)
        measured = [one.metrics["accuracy"] for one in found]
        assert measured == sorted(set(measured))
        return found


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1800)
def test_a_backfill_of_a_quarter_with_a_month_that_fails(standalone: Standalone) -> None:
    months = Months(standalone)
    standalone.wait_for_dag(BACKFILL, unpause=False)
    january, february, march = run_ids = months.backfill(1, 3)
    standalone.set_task_state(BACKFILL, february, "train", "failed")
    standalone.unpause(BACKFILL)
    standalone.wait_run(BACKFILL, january, timeout=4 * PATIENCE_SECONDS)
    standalone.wait_run(BACKFILL, february, "failed", timeout=2 * PATIENCE_SECONDS)
    standalone.wait_task(BACKFILL, march, "prepare", timeout=2 * PATIENCE_SECONDS)
    assert standalone.task_state(BACKFILL, march, "train") is None
    with pytest.raises(AirflowError, match="already a running backfill"):
        months.backfill(1, 3)

    standalone.clear_task(BACKFILL, february, "train", include_downstream=True)
    standalone.wait_run(BACKFILL, march, timeout=8 * PATIENCE_SECONDS)
    assert standalone.run_state(BACKFILL, february) == "success"
    months.check_order(run_ids)
    newest = months.promoted()[-1]

    standalone.clear_task(BACKFILL, january, "train", include_downstream=True)
    standalone.wait_run(BACKFILL, january, timeout=4 * PATIENCE_SECONDS)
    again = standalone.xcom(BACKFILL, january, "train", "run_uri")
    assert again.endswith("~2")
    origin = open_run(again).state.origin
    assert origin is not None
    assert origin.promotion == newest.number
    months.promoted()


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_backfill_of_a_year(standalone: Standalone) -> None:
    """By the command, as the DAG says it; and again: there is nothing to do."""
    months = Months(standalone)
    standalone.wait_for_dag(BACKFILL)
    year = ["--from-date", "2025-01-01", "--to-date", "2025-12-31", "--max-active-runs", "12"]
    words = ["backfill", "create", "--dag-id", BACKFILL, *year, "--reprocess-behavior", "failed"]
    standalone.command(*words)
    run_ids = months.made()
    assert len(run_ids) == 12
    standalone.wait_run(BACKFILL, run_ids[-1], timeout=16 * PATIENCE_SECONDS)
    months.check_order(run_ids)
    found = months.promoted()
    assert len(found) > 3
    poll("the backfill to be over", months.over, timeout=PATIENCE_SECONDS)
    standalone.command(*words)
    poll("the next one to be over", months.over, timeout=PATIENCE_SECONDS)
    assert months.made() == run_ids
    assert months.promoted() == found


# -- what exists only while a training does --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scratch(standalone: Standalone) -> Iterator[Path]:
    standalone.wait_for_dag(SCRATCH)
    place = Path(tempfile.gettempdir()) / SCRATCH
    yield place
    shutil.rmtree(place, ignore_errors=True)


def torn_down(airflow: Standalone, run_id: str, folder: Path) -> RunState:
    """Wait for the teardown; the run, which has ended before its data was gone."""
    airflow.wait_task(SCRATCH, run_id, "remove", timeout=2 * PATIENCE_SECONDS)
    assert not folder.exists()
    state = open_run(airflow.xcom(SCRATCH, run_id, "train", "run_uri")).state
    assert state.ended_at is not None
    assert (
        state.ended_at
        <= datetime.fromisoformat(airflow.task(SCRATCH, run_id, "remove")["start_date"]).timestamp()
    )
    return state


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1200)
def test_the_teardown_runs_whatever_the_training_does(standalone: Standalone, scratch: Path) -> None:
    good = standalone.trigger(SCRATCH, {"epochs": 1, "step_seconds": 0})
    bad = standalone.trigger(SCRATCH, {"epochs": 1, "lr": -1})
    standalone.wait_run(SCRATCH, good, timeout=4 * PATIENCE_SECONDS)
    assert torn_down(standalone, good, scratch / good).outcome == "succeeded"
    standalone.wait_run(SCRATCH, bad, "failed", timeout=4 * PATIENCE_SECONDS)
    assert "Invalid learning rate" in standalone.task_log(SCRATCH, bad, "train")
    assert torn_down(standalone, bad, scratch / bad).outcome == "failed"

    long = standalone.trigger(SCRATCH, {"epochs": 10_000, "step_seconds": 0.1})
    standalone.wait_task(SCRATCH, long, "train", "deferred", timeout=2 * PATIENCE_SECONDS)
    uri = standalone.xcom(SCRATCH, long, "train", "run_uri")
    until(lambda: open_run(uri).status()["step"], "a step")
    assert (scratch / long / "digits.npz").exists()
    standalone.set_task_state(SCRATCH, long, "train", "failed")
    assert torn_down(standalone, long, scratch / long).outcome == "stopped"
    standalone.wait_run(SCRATCH, long, "failed", timeout=PATIENCE_SECONDS)

    standalone.clear_task(SCRATCH, good, "train")  # and with it its setup and teardowns
    standalone.wait_run(SCRATCH, good, timeout=4 * PATIENCE_SECONDS)
    again = torn_down(standalone, good, scratch / good)
    assert standalone.xcom(SCRATCH, good, "train", "run_uri").endswith("~2")
    assert again.outcome == "succeeded"


# -- evaluation beside a training ------------------------------------------------------------------------------------


@pytest.fixture
def evaluates(standalone: Standalone) -> Iterator[None]:
    """The DAG runs for each event, and its trigger watches."""
    standalone.wait_for_dag(EVALUATE)
    (asset,) = standalone.rest("GET", "assets", params={"name_pattern": "digits_checkpoint"})["assets"]
    notes = f"assets/{asset['id']}/state-store"
    poll(
        "the trigger to watch",
        lambda: standalone.rest("GET", notes)["asset_state_store"] or None,
        timeout=PATIENCE_SECONDS,
        hint=standalone.condition,
    )
    yield
    standalone.rest("PATCH", f"dags/{EVALUATE}", json={"is_paused": True})


@pytest.fixture
def in_a_shell(standalone: Standalone, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A long training that no task drives, where those of digits_quickstart are. It saves every 50 steps."""
    monkeypatch.syspath_prepend(str(DAGS))
    import digits.data

    data = digits.data.write(open_store(str(standalone.home / "digits")))
    run = open_store(str(standalone.home / "elastic-runs/digits_quickstart/train/in a shell"))
    words = ["run", "--every-steps", "50", "--keep", "100", "--uri", run.uri, "--"]
    script = [
        str(DAGS / "digits/train_digits.py"),
        "--data",
        data,
        "--epochs",
        "10000",
        "--step-seconds",
        "0.2",
    ]
    command = [sys.executable, "-m", "airflow_elastic.cli", *words, *script]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as training:
        try:
            yield run
        finally:
            training.send_signal(signal.SIGINT)  # it saves and ends
            training.wait(PATIENCE_SECONDS)


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1200)
def test_every_second_checkpoint_is_evaluated_while_training_goes_on(
    standalone: Standalone, evaluates: None, in_a_shell: Store
) -> None:
    run = in_a_shell
    found = poll(
        "two evaluations",
        lambda: told if len(told := checkpoint_retention.all_evaluations(run)) > 1 else None,
        timeout=3 * PATIENCE_SECONDS,
        hint=standalone.condition,
    )
    assert not Run(run).state.ended, "it trains on"
    assert sorted(found)[:2] == [100, 200]
    assert all(len(one) == 1 for one in found.values())
    manifest = checkpoints.read(run, 100)
    measured = checkpoint_retention.measured(run, manifest)
    assert measured["accuracy"] == found[100][0].metrics["accuracy"]
    assert 0.15 < measured["accuracy"] <= 1
    best = choose(run, best="max accuracy")
    assert checkpoint_retention.measured(run, best)["accuracy"] >= measured["accuracy"]
