"""When workers believe that nobody carries their run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.folder import FolderStore
from airflow_elastic.runtime.attendance import Attendance
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError


class _Unreachable(FolderStore):
    broken = False

    def get(self, key: str) -> bytes | None:
        if self.broken:
            raise StoreError("no answer")
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> _Unreachable:
    return _Unreachable(tmp_path)


def _looks(attendance: Attendance, clock: list[float], until: float) -> float | None:
    while clock[0] < until:
        clock[0] += 1.0
        if (missed := attendance.missed()) is not None:
            return missed
    return None


def test_each_new_status_renews_the_time(store: _Unreachable) -> None:
    clock = [0.0]
    attendance = Attendance(store, 60.0, lambda: clock[0])
    for word in (b"1", b"2", b"3"):
        store.put(layout.STATUS, word)
        assert _looks(attendance, clock, clock[0] + 55.0) is None
    assert _looks(attendance, clock, clock[0] + 10.0) == pytest.approx(60.0, abs=3.0)


def test_a_run_that_never_had_a_status_is_unattended_too(store: _Unreachable) -> None:
    clock = [0.0]
    assert _looks(Attendance(store, 60.0, lambda: clock[0]), clock, 70.0) == pytest.approx(60.0, abs=3.0)


def test_while_storage_is_out_of_reach_the_time_does_not_run(store: _Unreachable) -> None:
    clock = [0.0]
    store.put(layout.STATUS, b"1")
    attendance = Attendance(store, 60.0, lambda: clock[0])
    assert _looks(attendance, clock, 50.0) is None
    store.broken = True
    for _ in range(200):
        clock[0] += 2.0
        with pytest.raises(StoreError):
            attendance.missed()
    store.broken = False
    assert _looks(attendance, clock, clock[0] + 50.0) is None
    assert _looks(attendance, clock, clock[0] + 15.0) is not None
