"""One look at a run for all triggers that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import Run
from airflow_elastic.core.conditions import Look
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.triggers import looks as module
from airflow_elastic.triggers.looks import RunReader, looks
from tests.support.runs.surface import FakeHook, begun, ended


class Counted:
    """A store that counts what is read, and may be out of reach."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read: Counter[str] = Counter()
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes | None:
        if self.fails:
            raise StoreError("out of reach")
        self.read[key] += 1
        return self._store.get(key)


@pytest.fixture
def run(hook: FakeHook, tmp_path: Path) -> Run:
    """A run whose controller has just written."""
    made = begun(hook, tmp_path)
    Journal(made.store).append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    written(made)
    return made


def written(run: Run) -> None:
    run.store.put(layout.STATUS, json.dumps(run.status()).encode())


async def test_a_hundred_who_wait_cost_as_much_as_one(run: Run) -> None:
    counted = Counted(run.store)
    opened = 0

    def open_it() -> Any:
        nonlocal opened
        opened += 1
        return RunReader(counted)  # type: ignore[arg-type]

    async def wait(number: int) -> list[Look | StoreError | None]:
        found = looks(("run",), open_it, 0.02)
        async with contextlib.aclosing(found):
            return [await anext(found) for _ in range(3)]

    seen = await asyncio.gather(*(wait(number) for number in range(100)))
    assert all(isinstance(look, Look) and look.uri == run.store.uri for many in seen for look in many)
    assert opened == 1
    assert set(counted.read) == {layout.STATUS}, "the journal is not read as long as a controller writes"
    assert counted.read[layout.STATUS] <= 4
    assert module._watches == {}


async def test_who_comes_later_is_told_what_was_seen_last(run: Run) -> None:
    counted: Any = Counted(run.store)
    first, second = (looks(("run",), lambda: RunReader(counted), 3600.0) for _ in range(2))
    async with contextlib.aclosing(first), contextlib.aclosing(second):
        one = await anext(first)
        assert await anext(second) is one
    assert counted.read[layout.STATUS] == 1


async def test_a_shorter_interval_counts_from_when_it_comes(run: Run) -> None:
    counted: Any = Counted(run.store)
    first = looks(("run",), lambda: RunReader(counted), 3600.0)
    second = looks(("run",), lambda: RunReader(counted), 0.01)
    async with contextlib.aclosing(first), contextlib.aclosing(second):
        await anext(first)
        for _ in range(3):
            await anext(second)
        assert isinstance(await anext(first), Look)


async def test_what_cannot_be_read_is_told_and_read_again(run: Run) -> None:
    counted: Any = Counted(run.store)
    counted.fails = True
    found = looks(("run",), lambda: RunReader(counted), 0.01)
    async with contextlib.aclosing(found):
        assert isinstance(await anext(found), StoreError)
        counted.fails = False
        async for look in found:
            if isinstance(look, Look):
                break


async def test_what_cannot_be_opened_is_an_error_for_all(run: Run) -> None:
    def refuse() -> Any:
        raise InvalidInput("no such place")

    async def wait() -> None:
        async with contextlib.aclosing(looks(("run",), refuse, 0.01)) as found:
            await anext(found)

    answers = await asyncio.gather(wait(), wait(), return_exceptions=True)
    assert [str(one) for one in answers] == ["no such place"] * 2
    assert module._watches == {}


def test_an_old_document_is_not_believed(run: Run) -> None:
    """Neither that of a controller that is gone, nor one that says that the run has ended: it may go on again."""
    reader = RunReader(run.store)
    document = json.loads(run.store.get(layout.STATUS) or b"")
    for change in (
        {"at": document["at"] - 61, "step": 7},
        {"outcome": "failed"},
        {"version": 0},
        {"run": {"uri": "/x"}},
    ):
        run.store.put(layout.STATUS, json.dumps({**document, **change}).encode())
        look = reader.look()
        assert look is not None
        assert (look.outcome, look.step, look.uri) == (None, 0, run.store.uri)
    run.store.put(layout.STATUS, b"{")
    assert reader.look() is not None
    ended(run, "failed", "no luck")
    look = reader.look()
    assert look is not None
    assert look.outcome == "failed"


def test_where_no_run_is_there_is_nothing_to_see(tmp_path: Path) -> None:
    assert RunReader(open_store(str(tmp_path))).look() is None
