"""Runs and models for tasks that wait: the test writes what a controller would write."""

from __future__ import annotations

import json
import time
from pathlib import Path

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.models import Request, promote
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import Progress, Stretch
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.models import a_run, exported, saved
from tests.support.runs.surface import ended
from tests.support.training.saving import network, save

SPEC = RunSpec(("train.py",), engine="fake", workers=Workers(1, max=2))


class Place:
    """What the tasks of tests/airflow/dags/waits_dag.py wait for. Nothing of it has come, until the test says so."""

    def __init__(self, folder: Path, *, promoted: bool = True) -> None:
        self.folder = folder
        self.run, self.stopped, self.saved = (self._begun(name) for name in ("run", "stopped", "saved"))
        for step in (10, 20):
            saved(self.saved.store, step)
        source = a_run(folder / "judged", {5: {"loss": 0.5}, 6: {"loss": 0.4}})
        for step in (5, 6) if promoted else ():
            promote(open_store(str(folder / "older")), source, Request("a test", step=step), exported)
        (folder / "room").write_text("1")

    def _begun(self, name: str) -> Run:
        run = start_run(open_store(str(self.folder / name)), SPEC, owner="a test", engine=FakeEngine())
        assert Journal(run.store).append(1, ev.AttemptSubmitted(time.time(), 1, "job"))
        return run

    def go_on(self) -> None:
        """Everything that is waited for comes."""
        now, journal = time.time(), Journal(self.run.store)
        saved(self.run.store, 20, loss=0.5)
        for event in (
            ev.CheckpointCommitted(now, 1, 20, layout.manifest(20)),
            ev.ScaleRequested(now, "r", 2, "a test"),
            ev.Scaled(now, 1, 2),
        ):
            assert journal.append(len(journal.read()), event)
        self.report()
        ended(self.stopped, "stopped")
        (self.folder / "room").write_text("2")
        self._judge("good")

    def go_wrong(self) -> None:
        """Nothing of it comes any more."""
        ended(self.run, "failed", "no luck")
        ended(self.stopped, "failed", "no luck")
        (self.folder / "room").write_text("gone")
        self._judge("bad")

    def report(self, step: int = 20) -> None:
        """Write the status document of two workers that have done so many steps, after one restart."""
        now = time.time()
        stretch = Stretch(
            2, 2, 2, started_at=now, first_step_at=now, last_step_at=now, from_step=0, to_step=step
        )
        progress = Progress(1, now, world_size=2, step=step, stretches=(stretch,), attached=True)
        told = document(self.run.store.uri, self.run.state, progress, now)
        told["restarts"]["used"] = 1
        self.run.store.put(layout.STATUS, json.dumps(told).encode())

    def _judge(self, word: str) -> None:
        (self.folder / "judging").write_text(word)
        (self.folder / "judging").rename(self.folder / "verdict")


def save_source(folder: Path) -> None:
    """A run with a checkpoint of a real network, for evaluations and promotions."""
    save(folder / "source", 5, network(5))
    assert checkpoints.steps(open_store(str(folder / "source"))) == [5]
