"""Sensors and operators that wait, on PostgreSQL: with two triggerers and two schedulers, of which one is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import promotions
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.runs import Run
from airflow_elastic.testing import processes
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.airflow.conftest import DAGS, PLUGINS
from tests.airflow.dags.waits_dag import KINDS
from tests.support.machine import postgres
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.waits import Waits, begin, waiting
from tests.support.runs.places import Place, save_source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(postgres.programs() is None, reason="install PostgreSQL (its initdb) to run this"),
]

DEFERRED = [name for name in KINDS if waiting(name) == "deferred"]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """An Airflow on PostgreSQL with two triggerers and two schedulers."""
    with postgres.postgres() as database:
        env = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{database}",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PLUGINS),
        }
        running = Standalone(tmp_path_factory.mktemp("airflow"), DAGS, env=env, progress=print)
        running.start()
        try:
            running.start_triggerer()
            second = running._spawn(["scheduler", "--skip-serve-logs"], running.home / "scheduler-2.log")
            jobs = {"job_type": "SchedulerJob", "is_alive": True}

            def both() -> bool | None:
                return running.rest("GET", "jobs", params=jobs)["total_entries"] == 2 or None

            poll("two schedulers", both, timeout=PATIENCE_SECONDS)
            yield running
        finally:
            running.stop(detached=True)
            second.wait()


def begun(airflow: Standalone, folder: Path) -> tuple[Waits, Place]:
    """A DAG run whose tasks all wait."""
    save_source(folder)
    place = Place(folder)
    waits = begin(airflow, "elastic_waits", folder)
    waits.wait({(name, -1): waiting(name) for name in KINDS})
    return waits, place


def go_on(waits: Waits, place: Place) -> None:
    """Let what they wait for come, and see that each does its work, and does it once."""
    place.go_on()
    waits.answer("Promote")
    waits.wait({(name, -1): "success" for name in KINDS}, places=[place])
    assert {name: one["try_number"] for (name, _), one in waits.tasks().items()} == dict.fromkeys(KINDS, 1)
    posted = [sorted(one.by for one in Mailbox(run.store).read()) for run in (place.run, place.stopped)]
    assert posted == [["elastic_waits.save", "elastic_waits.scale"], ["elastic_waits.stop"]]
    models = [promotions.history(open_store(str(place.folder / name))) for name in ("models", "older")]
    kinds = [[one.kind for one in model] for model in models]
    assert kinds == [["promote"], ["promote", "promote", "rollback"]]
    assert (
        len(
            Run(open_store(waits.airflow.xcom(waits.dag, waits.run_id, "evaluate", "run_uri"))).state.attempts
        )
        == 1
    )


def drivers(waits: Waits) -> dict[str, int | None]:
    """The number of the triggerer of each deferred task."""
    found = waits.tasks()
    jobs = {name: found[name, -1]["triggerer_job"] for name in DEFERRED}
    return {name: None if job is None else int(job["id"]) for name, job in jobs.items()}


def test_a_killed_triggerer_hands_every_wait_to_the_other(airflow: Standalone, tmp_path: Path) -> None:
    waits, place = begun(airflow, tmp_path)
    poll("triggerers for all", lambda: None not in drivers(waits).values() or None, timeout=PATIENCE_SECONDS)
    before = drivers(waits)
    jobs = airflow.rest("GET", "jobs", params={"job_type": "TriggererJob"})["jobs"]
    pids = dict(zip(sorted(int(job["id"]) for job in jobs), airflow.triggerer_pids(), strict=True))
    victim, _ = Counter(before.values()).most_common(1)[0]
    airflow.kill_triggerer(pids[victim or 0])

    def moved() -> bool | None:
        now = {*drivers(waits).values()}
        return (len(now) == 1 and not now & {None, victim}) or None

    poll("one triggerer for all", moved, timeout=PATIENCE_SECONDS, hint=airflow.condition)
    go_on(waits, place)


def test_a_killed_scheduler_leaves_every_task_to_the_other(airflow: Standalone, tmp_path: Path) -> None:
    waits, place = begun(airflow, tmp_path)
    with airflow.parts.unwatched():
        for process in processes.family(airflow.part_pid("scheduler") or 0):
            processes.send(process, 9)
        poll("it to be gone", lambda: airflow.part_pid("scheduler") is None or None, timeout=PATIENCE_SECONDS)
        go_on(waits, place)
