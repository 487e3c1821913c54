"""What `checkpoint --wait` takes for an answer, and whether `stop --wait` tells that no controller is there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli import find_run
from airflow_elastic.cli.inspect import requests
from airflow_elastic.control.controller import STATUS_SECONDS
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("saves", "answer"),
    [
        ([(20, "requested", "")], 20),
        ([(20, "steps", ""), (27, "requested", "")], 27),  # 20 was on its way already
        ([(20, "steps", ""), (30, "steps", "")], 30),  # it was asked at step 30, which is saved anyway
        ([(20, "breakpoint", "")], 20),  # the run was scaled just then
        ([(90, "requested", "another run's"), (20, "requested", "")], 20),
    ],
)
def test_what_was_saved_before_is_not_taken_for_the_answer(
    saves: list[tuple[int, str, str]], answer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    start_run(store, RunSpec(("train.py",)), engine=FakeEngine())
    coming = [(10, "steps", ""), *saves]

    def commit(_: float = 0.0) -> None:
        step, reason, run = coming.pop(0)
        data = layout.checkpoint_data(step, 1, 1)
        assert checkpoints.commit(store, Manifest(step, 1, 1, 1, 0.0, data, (), reason=reason, run=run))

    commit()
    monkeypatch.setattr(requests, "time", SimpleNamespace(sleep=commit, monotonic=time.monotonic))
    done = CliRunner().invoke(requests.checkpoint, [str(tmp_path), "--wait"])
    assert f"checkpoint {answer} committed" in done.output, done.output
    assert coming == []


class Clock:
    """Seconds pass while somebody waits, and a controller does what it does at its moments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self.moments: dict[float, Callable[[], object]] = {}
        here = SimpleNamespace(sleep=self.sleep, monotonic=lambda: self.now, time=lambda: self.now)
        for module in (requests, find_run):
            monkeypatch.setattr(module, "time", here)

    def at(self, seconds: float, what: Callable[[], object]) -> None:
        self.moments[self.now + seconds] = what

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in sorted(one for one in self.moments if one <= self.now):
            self.moments.pop(moment)()


@pytest.mark.parametrize(
    ("written", "hints"),
    [
        (range(0, 120, int(STATUS_SECONDS)), False),  # while workers take two minutes to save and end
        ((0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110), False),  # and every second time storage was away
        ((), True),
        ((0, 5, 10), True),  # it was killed meanwhile
    ],
    ids=["at work", "late", "never", "until it was killed"],
)
def test_stop_tells_of_a_missing_controller_where_none_writes_and_of_none_else(
    written: Iterable[int], hints: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    store = open_store(str(tmp_path))
    start_run(store, RunSpec(("train.py",)), engine=FakeEngine())
    journal = Journal(store)
    for number, event in enumerate(
        (ev.AttemptSubmitted(clock.now, 1, "job"), ev.StopRequested(clock.now, "r", "ada")), 1
    ):
        assert journal.append(number, event)

    def beat() -> None:
        store.put(layout.STATUS, json.dumps({"at": clock.now}).encode())

    for moment in written:
        clock.at(moment, beat)
    stopped = ev.RunEnded(clock.now + 120.0, "stopped", "stopped by ada")
    clock.at(120.0, lambda: journal.append(3, stopped))
    done = CliRunner().invoke(requests.stop, [str(tmp_path), "--wait"])
    assert done.exit_code == 0, done.output
    assert done.stdout == "stopped at step 0: stopped by ada\n"
    assert done.stderr.count("no controller has written for") == hints
    assert done.stderr == "" if not hints else "carry it on with" in done.stderr


def test_stop_that_waits_in_vain_says_for_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    start_run(open_store(str(tmp_path)), RunSpec(("train.py",)), engine=FakeEngine())
    began = clock.now
    done = CliRunner().invoke(requests.stop, [str(tmp_path), "--wait", "--timeout", "30"])
    assert "waited 30 s for its end without success" in str(done.exception)
    assert 30.0 < clock.now - began < 31.0
