"""A training grows at night and shrinks by day, by itself: `dags/digits_scales_itself.py`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.spec.events import ScaleDecided
from airflow_elastic.testing.standalone import Standalone
from tests.airflow.patterns.test_shared_gpus import run_of, wait_trains

NIGHTS = "digits_nights"


def cron(moment: datetime) -> str:
    return f"{moment.minute} {moment.hour} * * *"


@pytest.mark.siblings("example DAGs")
@pytest.mark.timeout(1200)
def test_it_grows_at_night_and_shrinks_by_day(standalone: Standalone) -> None:
    """The night begins in the next minute but one, and lasts for a minute."""
    standalone.wait_for_dag(NIGHTS)
    night = datetime.now(UTC) + timedelta(minutes=2)
    times = {"night_begins": cron(night), "night_ends": cron(night + timedelta(minutes=1))}
    dag_run = standalone.trigger(NIGHTS, {"epochs": 400, "step_seconds": 0.1, **times})
    run = run_of(standalone, NIGHTS, dag_run)
    wait_trains(run, 1)
    wait_trains(run, 3)
    wait_trains(run, 1)
    said = run.status()["scaling"]
    assert isinstance(said, dict)
    assert (said["rule"], said["workers"]) == ("window", 1)
    run.ask_stop(by="test")
    standalone.wait_task(NIGHTS, dag_run, "train", "failed")  # a person has stopped it
    decisions = [one.decision for one in Journal(run.store).read() if isinstance(one, ScaleDecided)]
    steps = [one.workers for one in decisions if one.acts]
    assert steps == [3, 1]
    log = standalone.task_log(NIGHTS, dag_run, "train")
    assert "scale step 1 → 3 workers by the policy" in log
