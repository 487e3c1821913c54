"""When workers believe that nobody carries their run on, and when that the other workers do not come."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.checkpoint_parts import Superseded
from airflow_elastic.adapters.records.journal import Journal, identity
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.core.status_document import document
from airflow_elastic.runtime.agent.rendezvous_timeout import RendezvousTimeout
from airflow_elastic.runtime.agent.reporting.controller_lease import ControllerLease
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.status import Wait, Waiting
from tests.support.builders import created, story


class _Unreachable(FolderStore):
    broken = False

    def get(self, key: str) -> bytes | None:
        if self.broken:
            raise StoreError("no answer")
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> _Unreachable:
    return _Unreachable(tmp_path)


def _looks(attendance: ControllerLease, clock: list[float], until: float) -> float | None:
    while clock[0] < until:
        clock[0] += 1.0
        if (missed := attendance.missed("a-run")) is not None:
            return missed
    return None


def test_each_new_status_renews_the_time(store: _Unreachable) -> None:
    clock = [0.0]
    attendance = ControllerLease(store, 60.0, lambda: clock[0])
    for word in (b"1", b"2", b"3"):
        store.put(layout.STATUS, word)
        assert _looks(attendance, clock, clock[0] + 55.0) is None
    assert _looks(attendance, clock, clock[0] + 10.0) == pytest.approx(60.0, abs=3.0)


def test_a_run_that_never_had_a_status_is_unattended_too(store: _Unreachable) -> None:
    clock = [0.0]
    assert _looks(ControllerLease(store, 60.0, lambda: clock[0]), clock, 70.0) == pytest.approx(60.0, abs=3.0)


def test_whoever_carries_on_another_run_in_its_place_is_not_its_controller(store: _Unreachable) -> None:
    clock = [0.0]
    Journal(store).append(0, created())
    run, attendance = identity(store), ControllerLease(store, 60.0, lambda: clock[0])
    clock[0] += 3.0
    assert attendance.missed(run) is None
    store.delete([layout.journal_entry(0)])
    clock[0] += 3.0
    assert attendance.missed(run) is None, "what is out of sight is not replaced"
    Journal(store).append(0, replace(created(), at=1.0))
    clock[0] += 3.0
    with pytest.raises(Superseded, match="another run has begun at"):
        attendance.missed(run)


def test_while_storage_is_out_of_reach_the_time_does_not_run(store: _Unreachable) -> None:
    clock = [0.0]
    store.put(layout.STATUS, b"1")
    attendance = ControllerLease(store, 60.0, lambda: clock[0])
    assert _looks(attendance, clock, 50.0) is None
    store.broken = True
    for _ in range(200):
        clock[0] += 2.0
        with pytest.raises(StoreError):
            attendance.missed("a-run")
    store.broken = False
    assert _looks(attendance, clock, clock[0] + 50.0) is None
    assert _looks(attendance, clock, clock[0] + 15.0) is not None


def _write(store: FolderStore, wait: Wait | None) -> None:
    state = story(ev.AttemptSubmitted(1.0, 1, "a1"))
    store.put(layout.STATUS, json.dumps(document(store.uri, state, None, 2.0, wait)).encode())


def _until_over(patience: RendezvousTimeout, clock: list[float], limit: float) -> bool:
    while clock[0] < limit and not patience.over:
        clock[0] += 1.0
    return patience.over


def test_a_worker_waits_for_others_as_long_as_these_wait_for_a_machine(store: _Unreachable) -> None:
    """Without that each `start_seconds` of a short cluster cost a restart, and the second one ended the run."""
    clock = [0.0]
    _write(store, Wait(Waiting.CAPACITY, 1, 2))
    patience = RendezvousTimeout(store, 1, 600.0, lambda: clock[0])
    assert not _until_over(patience, clock, 86_400.0)
    _write(store, None)
    assert not _until_over(patience, clock, 86_400.0 + 560.0), "it has just got one"
    assert _until_over(patience, clock, 86_400.0 + 602.0)


@pytest.mark.parametrize("word", [None, Wait(Waiting.CAPACITY, 1, 2)])
def test_others_that_only_do_not_come_are_not_waited_for(store: _Unreachable, word: Wait | None) -> None:
    clock = [0.0]
    _write(store, word)
    patience = RendezvousTimeout(store, 2, 600.0, lambda: clock[0])  # what is written is of attempt 1
    assert not _until_over(patience, clock, 599.0)
    assert _until_over(patience, clock, 602.0)


def test_while_storage_is_out_of_reach_others_may_be_waiting(store: _Unreachable) -> None:
    clock = [0.0]
    store.broken = True
    assert not _until_over(RendezvousTimeout(store, 1, 60.0, lambda: clock[0]), clock, 600.0)
