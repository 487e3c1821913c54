"""The DAGs that come with the project, for data that comes and goes: run for real, as users copy them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import open_run
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.models import Promotion
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS, until

BACKFILL, SCRATCH = "digits_backfill", "digits_scratch"


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
        made = self.airflow.rest("POST", "backfills", json=body)
        assert made["completed_at"] is None
        asked = {"run_type": "backfill", "order_by": "logical_date", "limit": 100}
        runs = self.airflow.rest("GET", f"dags/{BACKFILL}/dagRuns", params=asked)["dag_runs"]
        ids = {datetime.fromisoformat(run["logical_date"]).month: str(run["dag_run_id"]) for run in runs}
        return [ids[month] for month in range(first, last + 1)]

    def moment(self, run_id: str, task: str, field: str) -> datetime:
        return datetime.fromisoformat(self.airflow.task(BACKFILL, run_id, task)[field])

    def check_order(self, run_ids: list[str]) -> None:
        """Each month was trained when the one before it was done, and from the newest model of that time."""
        for before, after in pairwise(run_ids):
            assert self.moment(after, "train", "start_date") >= self.moment(before, "promote", "end_date")
        number = None
        for run_id in run_ids:
            uri = self.airflow.xcom(BACKFILL, run_id, "train", "run_uri")
            origin = open_run(uri).state.origin
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
    assert "one running backfill" in str(refused(months))

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


def refused(months: Months) -> Exception:
    with pytest.raises(Exception, match="backfill") as raised:
        months.backfill(1, 3)
    return raised.value


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
