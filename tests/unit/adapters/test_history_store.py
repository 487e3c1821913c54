"""The history in storage: deaths between any two operations, several writers, damage, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.history import CONTROLLER, TRAINING, HistoryWriter, read_history
from airflow_elastic.adapters.records.history.write import DEAD_SECONDS, FAR, Pace
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Entry
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.history import Condition
from tests.support.machine.machines import Far

START = 1_790_000_040.0
PACE = Pace(part=60.0, quiet=60.0, archive=600.0)
EVERY = 10


class Killed(BaseException):
    """The process is gone."""


class Counting(FolderStore):
    """Counts operations by name, and kills before or after the one with a number. Changes only count as points."""

    def __init__(self, root: Path, point: int = -1) -> None:
        super().__init__(root)
        self.point, self.points = point, 0
        self.calls: Counter[str] = Counter()
        self.fails = False

    def _tick(self) -> None:
        if self.points == self.point:
            raise Killed
        self.points += 1

    def _change(self, name: str, call: Any, *args: Any, **options: Any) -> Any:
        self.calls[name] += 1
        if self.fails:
            raise StoreError("out of reach")
        self._tick()
        answer = call(*args, **options)
        self._tick()
        return answer

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        self._change("put", super().put, key, data, durable=durable)

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._change("create", super().create, key, data))

    def delete(self, keys: Iterable[str]) -> None:
        self._change("delete", super().delete, keys)

    def get(self, key: str) -> bytes | None:
        self.calls["get"] += 1
        return super().get(key)

    def list(self, prefix: str = "") -> list[Entry]:
        self.calls["list"] += 1
        return super().list(prefix)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def steps(store: FolderStore, source: str = TRAINING) -> list[int]:
    """The steps of a history. Each has a bucket of its own, so one that counts twice is seen."""
    part = getattr(read_history(store, START), source)
    column = part.table.columns.get("step")
    if column is None:
        return []
    assert set(column.count) <= {0, 1}, "a value counts twice"
    return [int(value) for value, count in zip(column.mean, column.count, strict=True) if count]


def write(store: FolderStore, clock: Clock, seconds: int, attempt: int = 1) -> None:
    """One writer, with a value every 10 seconds, until the time is over or it is killed."""
    writer = HistoryWriter(store, TRAINING, attempt=attempt, pace=PACE, now=clock)
    for _ in range(0, seconds, EVERY):
        clock.now += EVERY
        step = int(clock.now - START) // EVERY
        writer.add(clock.now, {"step": step, "attempt": attempt}, {"step_seconds": {"0": 0.1}})
        writer.tend()
    writer.flush()


def points() -> int:
    """How many points a writer passes at which it can be killed."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = Counting(Path(folder))
        write(store, Clock(), 1500)
        return store.points


@pytest.mark.parametrize("point", range(points()))
def test_a_death_at_any_point_loses_at_most_the_last_minute(tmp_path: Path, point: int) -> None:
    clock = Clock()
    with pytest.raises(Killed):
        write(Counting(tmp_path, point), clock, 1500)
    died = int(clock.now - START) // EVERY
    found = steps(FolderStore(tmp_path))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= died - PACE.part / EVERY - 1
    # The next attempt goes on; at last everything of the dead one is in an archive.
    write(FolderStore(tmp_path), clock, 1500, attempt=2)
    last = int(clock.now - START) // EVERY
    assert steps(FolderStore(tmp_path)) == [*found, *range(died + 1, last + 1)]
    left = [entry.key for entry in FolderStore(tmp_path).list(layout.HISTORY)]
    assert sum("recent" in key for key in left) == 1
    assert 1 <= sum("archive" in key for key in left) <= 3


def test_two_writers_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    clock, store = Clock(), FolderStore(tmp_path)
    two = [HistoryWriter(store, CONTROLLER, pace=PACE, now=clock) for _ in range(2)]
    for step in range(360):
        clock.now += EVERY
        two[step % 2].add(clock.now, {"step": step})
        for one in two:
            one.tend()
    for one in two:
        one.flush()
    assert steps(store, CONTROLLER) == list(range(360))


class Racing(FolderStore):
    """Before the first archive is created, another writer creates some."""

    def __init__(self, root: Path, others: Any) -> None:
        super().__init__(root)
        self._others = others

    def create(self, key: str, data: bytes) -> bool:
        others, self._others = self._others, None
        if others is not None:
            others()
        return super().create(key, data)


@pytest.mark.parametrize("folds", [1, 2, 3, 4])
def test_who_loses_the_race_for_an_archive_folds_again(tmp_path: Path, folds: int) -> None:
    """Also if the winner has meanwhile created and removed an archive of the same number."""
    clock, store = Clock(), FolderStore(tmp_path)
    other = HistoryWriter(store, TRAINING, attempt=1, pace=PACE, now=clock)

    def win() -> None:
        for _ in range(folds):
            for _ in range(12):
                clock.now += EVERY
                other.add(clock.now, {"step": int(clock.now - START) // EVERY, "attempt": 1})
            assert other.fold()

    mine = HistoryWriter(Racing(tmp_path, win), TRAINING, attempt=1, pace=PACE, now=clock)
    for _ in range(12):
        clock.now += EVERY
        mine.add(clock.now, {"step": int(clock.now - START) // EVERY, "attempt": 1})
    assert mine.fold()
    mine.flush()
    other.flush()
    assert steps(store) == list(range(1, 12 * (folds + 1) + 1))


def test_storage_that_is_out_of_reach_only_delays(tmp_path: Path) -> None:
    clock, store = Clock(), Counting(tmp_path)
    writer = HistoryWriter(store, TRAINING, attempt=1, pace=PACE, now=clock)
    for step in range(300):
        clock.now += EVERY
        store.fails = 30 <= step < 200
        writer.add(clock.now, {"step": step, "attempt": 1})
        try:
            writer.tend()
        except StoreError:
            assert store.fails
    writer.flush()
    assert steps(store) == list(range(300))
    assert store.calls["put"] < 80, "storage that fails is not asked all the time"


def test_a_damaged_archive_is_left_out_and_the_one_before_counts(tmp_path: Path) -> None:
    clock, store = Clock(), FolderStore(tmp_path)
    write(store, clock, 2000)
    newest = [entry.key for entry in store.list(layout.HISTORY) if "archive" in entry.key][-1]
    whole = steps(store)
    data = store.get(newest)
    assert data is not None
    store.put(newest, data[:-20])
    left = steps(store)
    assert left
    assert set(left) < set(whole)
    write(store, clock, 1300, attempt=2)
    assert set(left) < set(steps(store))


def test_what_a_newer_release_has_written_is_not_folded_over(tmp_path: Path) -> None:
    clock, store = Clock(), FolderStore(tmp_path)
    write(store, clock, 2000)
    newest = [entry.key for entry in store.list(layout.HISTORY) if "archive" in entry.key][-1]
    data = bytearray(store.get(newest) or b"")
    data[data.index(b"\n") + 1] = 99
    store.put(newest, bytes(data))
    write(store, clock, 1300, attempt=2)
    assert [entry.key for entry in store.list(layout.HISTORY) if "archive" in entry.key][-1] == newest
    assert store.get(newest) == bytes(data)


def test_foreign_objects_in_its_folder_do_no_harm(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for name in ("archive-", "archive-x", "archive-99999999999", "recent-", "recent-a0001-x", "notes.txt"):
        store.put(f"{layout.HISTORY}{TRAINING}/{name}", b"mine")
    write(store, Clock(), 1300)
    assert steps(store) == list(range(1, 131))


def test_on_a_service_a_run_makes_less_than_one_request_a_minute(tmp_path: Path) -> None:
    """Both writers together, over a day, in which the controller sees a wait of an hour."""
    clock, calls = Clock(), Counter[str]()

    class Service(Far):
        def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
            calls["put"] += 1
            super().put(key, data, durable=durable)

        def create(self, key: str, data: bytes) -> bool:
            calls["create"] += 1
            return super().create(key, data)

        def get(self, key: str) -> bytes | None:
            calls["get"] += 1
            return super().get(key)

        def list(self, prefix: str = "") -> list[Entry]:
            calls["list"] += 1
            return super().list(prefix)

        def delete(self, keys: Iterable[str]) -> None:
            calls["delete"] += 1
            super().delete(keys)

    store = Service(str(tmp_path))
    lead = HistoryWriter(store, TRAINING, attempt=1, now=clock)
    controller = HistoryWriter(store, CONTROLLER, now=clock)
    hours = 24
    for second in range(0, hours * 3600, 15):
        clock.now = START + second
        lead.add(clock.now, {"step": second // 15, "attempt": 1})
        controller.add(clock.now, {"goodput": 0.9})
        if 3600 <= second < 7200:
            controller.note(
                Condition("waiting", START + 3600, clock.now, "queued", open=True), news=second == 3600
            )
        lead.tend()
        controller.tend()
    assert calls.total() / (hours * 60) < 1.0, calls
    assert calls["put"] > hours * 3600 / FAR[TRAINING].part * 0.9
    assert 2 * FAR[TRAINING].part < DEAD_SECONDS, "a living writer is not taken for a dead one"
