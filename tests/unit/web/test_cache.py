"""A run is read once for all who watch it, and only as far as it is new."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records.history import TRAINING, read_history
from airflow_elastic.adapters.records.history.read import Known, Stored, read_source
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import RunMissing, StoreError
from airflow_elastic.spec.history import Part, encode_part
from airflow_elastic.views.all_runs import index as indexes
from airflow_elastic.views.all_runs.below import index_of
from airflow_elastic.views.cache import LONGEST_KEPT, MOST_KEPT, SAME, Reader, Readers
from airflow_elastic.views.history import SPARKS, charted, sparkline
from airflow_elastic.views.overview import shown
from airflow_elastic.web.api.answers import extended, prepared
from airflow_elastic.web.standalone.runs import RunsBelow
from tests.support.histories import fill
from tests.support.machine.machines import Far
from tests.support.runs.watched import Browser, submitted, trained, write_run


class Counting(FolderStore):
    """Counts what is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.reads: Counter[str] = Counter()
        self.broken = False

    def get(self, key: str) -> bytes | None:
        if self.broken:
            raise StoreError("the storage is out of reach")
        self.reads[key] += 1
        return super().get(key)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def test_fifty_watchers_read_the_run_once(tmp_path: Path) -> None:
    """All routes of a page, asked by fifty people at the same time."""
    write_run(tmp_path / "one", submitted(), progress=trained())
    browser, stores = Browser(tmp_path), list[Counting]()
    host = browser.host
    assert isinstance(host, RunsBelow)
    counting = Counting(tmp_path / "one")
    stores.append(counting)
    host.readers = Readers(clock=Clock())
    host.readers.of(counting)
    begin = threading.Barrier(50)

    def watch(_: int) -> list[int]:
        begin.wait()
        whats = ("", "/workers", "/events", "/history", "/heatmap", "/checkpoints", "/logs")
        return [browser.of("one", what).status_code for what in whats]

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(watch, range(50)))
    assert answers == [[200] * 7] * 50
    assert counting.reads["journal/00000001.json"] == 1
    assert counting.reads["reports/attempt-0001.json"] == 1
    assert counting.reads["status.json"] == 1
    assert max(counting.reads.values()) <= 2, counting.reads


def test_only_new_entries_of_the_journal_are_read(tmp_path: Path) -> None:
    write_run(tmp_path, submitted(), progress=trained())
    store, clock = Counting(tmp_path), Clock()
    reader = Reader(store, clock=clock)
    assert len(reader.snapshot().events) == 2
    store.reads.clear()
    clock.now += 1.0
    assert reader.snapshot() is reader.snapshot()
    assert not store.reads
    clock.now += 10.0
    assert Journal(store).append(2, ev.CheckpointCommitted(clock.now, 1, 90, "k"))
    found = reader.snapshot()
    assert [event["seq"] for event in found.events] == [0, 1, 2]
    assert found.document["checkpoints"]["newest"]["step"] == 90
    assert {key for key in store.reads if key.startswith("journal/")} == {
        "journal/00000002.json",
        "journal/00000003.json",
    }


def test_an_ended_run_costs_a_read_and_may_be_reopened(tmp_path: Path) -> None:
    write_run(tmp_path, submitted(), ev.AttemptGone(time.time(), 1), ev.RunEnded(time.time(), "failed", "x"))
    store, clock = Counting(tmp_path), Clock()
    reader = Reader(store, clock=clock)
    assert reader.snapshot().state.ended
    store.reads.clear()
    clock.now += 10.0
    assert reader.snapshot().state.ended
    assert dict(store.reads) == {"journal/00000004.json": 1}
    clock.now += 10.0
    assert Journal(store).append(4, ev.RunReopened(clock.now, "ada"))
    assert not reader.snapshot().state.ended


def test_another_run_at_the_same_place_is_read_anew(tmp_path: Path) -> None:
    """Somebody removes a run and begins another one there."""
    store, clock = Counting(tmp_path / "one"), Clock()
    write_run(
        tmp_path / "one",
        submitted(),
        *[ev.CheckpointCommitted(1.0, 1, step, "k") for step in (1, 2, 3)],
        name="old",
    )
    reader = Reader(store, clock=clock)
    assert len(reader.snapshot().events) == 5
    (tmp_path / "one").rename(tmp_path / "two")
    clock.now += SAME + 1
    with pytest.raises(RunMissing):
        reader.snapshot()
    write_run(tmp_path / "one", submitted(), name="new")
    clock.now += SAME + 1
    found = reader.snapshot()
    assert (found.document["run"]["name"], len(found.events)) == ("new", 2)


def test_a_storage_that_is_out_of_reach_is_asked_once_by_all(tmp_path: Path) -> None:
    write_run(tmp_path, submitted(), progress=trained())
    store, clock = Counting(tmp_path), Clock()
    reader = Reader(store, clock=clock)
    reader.snapshot()
    clock.now += 10.0
    store.broken = True
    for _ in range(3):
        with pytest.raises(StoreError):
            reader.snapshot()
    store.broken = False
    with pytest.raises(StoreError):
        reader.snapshot()
    clock.now += 10.0
    assert reader.snapshot().document["step"] == 100


def test_few_runs_are_kept(tmp_path: Path) -> None:
    readers = Readers(most=2)
    stores = [Counting(tmp_path / name) for name in "abc"]
    first = readers.of(stores[0])
    assert readers.of(stores[0]) is first
    readers.of(stores[1])
    readers.of(stores[2])
    assert readers.of(stores[0]) is not first


# -- the list ------------------------------------------------------------------------------------------------------


def test_the_list_is_read_behind_the_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks gets what is known at once; ended runs are not read each time."""
    for name in ("a", "b"):
        write_run(tmp_path / name, submitted(), progress=trained(), name=name)
    write_run(tmp_path / "over", submitted(), ev.RunEnded(time.time(), "failed", "x"), name="over")
    reads: Counter[str] = Counter()
    real = indexes.Index._document

    def counted(self: indexes.Index, place: Any) -> Any:
        reads[place.uri.rpartition("/")[2]] += 1
        return real(self, place)

    monkeypatch.setattr(indexes.Index, "_document", counted)
    index = index_of(FolderStore(str(tmp_path)))
    clock = index._clock = Clock()
    with ThreadPoolExecutor(20) as pool:
        assert len({at for at, _ in pool.map(lambda _: index.rows(), range(20))}) == 1
    assert reads == {"a": 1, "b": 1, "over": 1}
    clock.now += indexes.FRESH + 1
    at, rows = index.rows()
    assert at < clock.now  # the old rows, at once
    with index._renewing:  # the reading behind the back is over
        pass
    assert index.rows()[0] == clock.now
    assert reads == {"a": 2, "b": 2, "over": 1}
    assert {row["name"] for row in rows} == {"a", "b", "over"}


def test_the_list_outlives_a_storage_that_is_out_of_reach(tmp_path: Path) -> None:
    write_run(tmp_path / "a", submitted(), progress=trained())
    index = index_of(FolderStore(str(tmp_path)))
    clock = index._clock = Clock()
    assert len(index.rows()[1]) == 1

    def fail() -> Any:
        raise StoreError("out of reach")

    index._places = fail
    clock.now += indexes.FRESH + 1
    assert len(index.rows()[1]) == 1
    with index._renewing:
        pass
    clock.now += indexes.STALE + 1
    with pytest.raises(StoreError):
        index.rows()


def test_a_row_has_its_curve_after_a_moment(tmp_path: Path) -> None:
    """The first answer does not wait for the histories of all its rows."""
    store = write_run(tmp_path / "a", submitted(), progress=trained())
    fill(store, days=0.2, workers=2, ranks=2)
    index = index_of(FolderStore(str(tmp_path)))
    (row,) = index.with_curves(index.rows()[1])
    assert row["sparkline"] == []
    with index._curves._reading:
        pass
    (row,) = index.with_curves(index.rows()[1])
    assert row["sparkline"] == sparkline(read_history(store))
    assert 20 <= len(row["sparkline"]) <= SPARKS


def test_a_chart_is_drawn_once_for_all(tmp_path: Path) -> None:
    """An old one is shown at once, and the next who asks gets the new one."""
    store = write_run(tmp_path, submitted(), progress=trained())
    fill(store, days=0.2, workers=2, ranks=2)
    clock, drawn = Clock(), list[dict[str, Any]]()
    reader = Reader(store, clock=clock)

    def form(document: dict[str, Any]) -> int:
        drawn.append(document)
        return len(drawn)

    def chart(points: int = 50) -> int:
        return charted(reader, form, names="loss", since=None, until=None, points=points)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: chart(), range(20))) == {1}
    assert chart(points=20) == 2
    assert len(drawn[1]["series"]["loss"]["t"]) <= 20
    clock.now += 30.0
    assert chart() == 1
    for lock in list(reader._locks.values()):  # what is drawn behind the back is there
        with lock:
            pass
    assert chart() == 3
    clock.now += 300.0
    assert chart() == 4


def test_few_charts_of_a_run_are_kept(tmp_path: Path) -> None:
    reader = Reader(write_run(tmp_path, submitted()))
    for points in range(1, 300):
        charted(reader, dict, since=None, until=None, points=points)
    assert len(reader._kept) <= MOST_KEPT
    assert len(reader._locks) <= MOST_KEPT + 1


def test_an_archive_is_read_once(tmp_path: Path) -> None:
    """Until there is a newer one; a damaged one is not taken for the one that was read instead."""
    fill(FolderStore(str(tmp_path)), days=0.2)
    store, known = Counting(tmp_path), Known()

    def read() -> Stored:
        store.reads.clear()
        return read_source(store, TRAINING, known)

    archive = layout.history_archive(TRAINING, 1)
    first = read()
    assert store.reads[archive] == 1
    assert read() == first
    assert not store.reads[archive]
    store.put(layout.history_archive(TRAINING, 2), encode_part(Part(at=7.0)))
    assert read().archive == Part(at=7.0)
    store.put(layout.history_archive(TRAINING, 3), b"damaged")
    for _ in range(2):
        assert (read().archive, read().number) == (Part(at=7.0), 3)


def test_an_overview_is_made_once_of_what_was_read(tmp_path: Path) -> None:
    reader, made = Reader(write_run(tmp_path, submitted(), progress=trained()), clock=Clock()), []

    def form(document: dict[str, Any]) -> int:
        made.append(document)
        return len(made)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(lambda _: shown(reader, reader.snapshot(), form), range(20))) == {1}
    reader.forget()
    assert shown(reader, reader.snapshot(), form) == 2


def test_fields_of_a_person_change_the_tag() -> None:
    document = prepared({"at": 1.0, "state": "running"})
    mine, other = (extended(document, {"user": name}) for name in ("ada", "vera"))
    assert json.loads(mine.body) == {"at": 1.0, "state": "running", "user": "ada"}
    assert len({document.tag, mine.tag, other.tag}) == 3
    assert extended(prepared({"at": 2.0, "state": "running"}), {"user": "ada"}).tag == mine.tag


def test_answers_that_nobody_asks_for_again_go(tmp_path: Path) -> None:
    """A page that shows the last hour asks for another time each minute."""
    clock = Clock()
    reader = Reader(write_run(tmp_path / "one", submitted(), progress=trained()), clock=clock)
    archive = reader.kept("archive", object, math.inf)
    for minute in range(60):
        clock.now += 60.0
        reader.kept(f"charts since {minute}", list, 10.0)
    assert len(reader._kept) <= LONGEST_KEPT / 60 + 2
    assert reader.kept("archive", object, math.inf) is archive


@given(entries=st.integers(0, 40), start=st.integers(0, 20), missing=st.integers(0, 60))
def test_a_journal_on_a_service_is_read_as_one_in_a_folder(entries: int, start: int, missing: int) -> None:
    with TemporaryDirectory() as folder:
        near, far = FolderStore(folder), Far(folder)
        for seq in range(entries):
            near.put(
                layout.journal_entry(seq),
                json.dumps(
                    {"version": 1, "seq": seq, "writer": "w", **ev.event_to_dict(submitted(seq))}
                ).encode(),
                durable=False,
            )
        near.delete([layout.journal_entry(missing)])
        assert Journal(far).read(start) == Journal(near).read(start)


def test_a_long_journal_on_a_service_is_read_several_entries_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=60.0)

    class Slow(Far):
        def get(self, key: str) -> bytes | None:
            if int(Path(key).stem) >= 10:
                together.wait()
            return super().get(key)

    write_run(tmp_path, *[ev.CheckpointCommitted(1.0, 1, step, "k") for step in range(18)])
    assert len(Journal(Slow(str(tmp_path))).read()) == 19
