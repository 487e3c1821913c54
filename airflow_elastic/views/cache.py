"""Reads each run once for all who watch it: one reader of a run and process, for whom others wait.

The journal is read on from where the last read ended, and nothing is read again within two seconds.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import Seen, parse_seen, read_progress
from airflow_elastic.control.runs import FRESH_SECONDS
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError, RunMissing
from airflow_elastic.views.told import fold

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress

T = TypeVar("T")

#: A run that was read so many seconds ago is read again.
FRESH = 2.0

#: After so many seconds it is checked whether it is still the same run.
SAME = 30.0

#: The most answers of one run that are kept, such as charts of different times.
MOST_KEPT = 64

#: An answer that nobody has asked for again after so many seconds goes: a chart of the last hour is soon another one.
LONGEST_KEPT = 300.0

#: The most runs that are kept in memory.
MOST_RUNS = 128


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at one moment.

    Attributes:
        store: where it is stored.
        at: epoch seconds of the reading.
        state: from the journal.
        progress: newest report of the current attempt.
        document: the status document.
        events: each event of the journal as a document (`views.told`), oldest first.
        written_at: when a controller last wrote; None if it is not known.
        tasks: the task instances that the journal names as owners; None for a shell.
    """

    store: Store
    at: float
    state: RunState
    progress: Progress | None
    document: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    written_at: float | None
    tasks: frozenset[str | None]


class Reader:
    """One run, read on demand; may be used by many threads.

    Args:
        store: where it is stored.
        clock: epoch seconds.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self.store, self._clock = store, clock
        self._lock = threading.Lock()
        self._journal = Journal(store)
        self._state: RunState | None = None
        self._events: list[dict[str, Any]] = []
        self._tasks: set[str | None] = set()
        self._newest: Snapshot | None = None
        self._error: tuple[float, ElasticError] | None = None
        self._first: bytes | None = None
        self._same_at = float("-inf")
        self._kept: dict[str, tuple[float, Any, float]] = {}
        self._locks: dict[str, threading.Lock] = {}

    def snapshot(self, age: float = FRESH) -> Snapshot:
        """The run as it is now, or was at most `age` seconds ago.

        Raises:
            RunMissing: there is no run.
            StoreError: the storage does not answer.
        """
        with self._lock:
            now = self._clock()
            newest = self._newest
            if newest is not None and 0 <= now - newest.at <= age:
                return newest
            if self._error is not None and 0 <= now - self._error[0] <= FRESH:
                raise self._error[1]  # who waited for the answer does not ask the storage again
            try:
                newest = self._newest = self._read(now)
            except ElasticError as error:
                self._error = self._clock(), error
                raise
            self._error = None
            return newest

    def kept(self, name: str, make: Callable[[], T], age: float, *, stale: float = 0.0) -> T:
        """What `make` has returned at most `age` seconds ago, or returns now; the same to all who ask.

        Args:
            name: of what it makes.
            make: reads or computes it. It may ask for what is kept under other names.
            age: in seconds.
            stale: up to this age the old value is returned at once, and a new one is made behind the back.
        """
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        known, now = self._kept.get(name), self._clock()
        if known is not None and age < now - known[0] <= stale:
            if lock.acquire(blocking=False):
                threading.Thread(target=self._behind, args=(name, make, age, lock), daemon=True).start()
            return cast("T", known[1])
        with lock:
            known = self._kept.get(name)
            if known is None or not 0 <= self._clock() - known[0] <= age:
                return self._keep(name, make(), age)
            return cast("T", known[1])

    def kept_of(self, snapshot: Snapshot, name: str, make: Callable[[], T]) -> T:
        """What `make` has returned of this snapshot, or returns now; see `kept`."""
        return self.kept(name, make, self._clock() - snapshot.at)

    def _behind(self, name: str, make: Callable[[], object], age: float, lock: threading.Lock) -> None:
        try:
            self._keep(name, make(), age)
        except ElasticError:  # who asks when the value is too old gets the error
            pass
        finally:
            lock.release()

    def _keep(self, name: str, value: T, age: float) -> T:
        with self._lock:
            now = self._clock()
            self._kept.pop(name, None)
            self._kept[name] = now, value, age
            passing = [other for other, kept in self._kept.items() if other != name and kept[2] != math.inf]
            for other in passing:  # the oldest first
                if len(self._kept) <= MOST_KEPT and now - self._kept[other][0] <= LONGEST_KEPT:
                    break
                del self._kept[other]
                self._locks.pop(other, None)
        return value

    def use(self, store: Store) -> None:
        """Read the same run through another store from now on, such as one with newer credentials."""
        if store is not self.store:
            self.store, self._journal = store, Journal(store)

    def forget(self) -> None:
        """Read again what is asked for next: somebody has just changed it."""
        with self._lock:
            self._newest = None
            for name in ("checkpoints", "overview"):
                self._kept.pop(name, None)

    def _begin_again(self, now: float) -> None:
        """Forget everything if another run is at this place now: the old one was removed."""
        if 0 <= now - self._same_at <= SAME:
            return
        first, self._same_at = self.store.get(layout.journal_entry(0)), now
        if first != self._first:
            self._first, self._state, self._newest = first, None, None
            self._events, self._tasks, self._kept = [], set(), {}

    def _read(self, now: float) -> Snapshot:
        self._begin_again(now)
        events = self._journal.read(len(self._events))
        for event, (state, told) in zip(events, fold(self._state, events, len(self._events)), strict=True):
            self._state = state
            self._events.append(told)
            if hasattr(event, "task"):
                self._tasks.add(event.task)
        state_now = self._state
        if state_now is None:
            raise RunMissing(f"{self.store.uri} holds no run: it was removed, or has not begun")
        attempt = state_now.attempt.number
        # What ended cannot report any more, unless its run is reopened.
        if state_now.ended and self._newest is not None and not events:
            progress, written = self._newest.progress, self._newest.written_at
            seen = Seen()
        else:
            progress = read_progress(self.store, attempt) or state_now.attempt.progress
            data = self.store.get(layout.STATUS)
            written = _written_at(data)
            seen = Seen() if state_now.ended else parse_seen(data, attempt, since=now - FRESH_SECONDS)
        return Snapshot(
            self.store,
            now,
            state_now,
            progress,
            document(self.store.uri, state_now, progress, now, *seen),
            tuple(self._events),
            written,
            frozenset(self._tasks),
        )


def _written_at(data: bytes | None) -> float | None:
    """When a controller last wrote its status document."""
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        return float(json.loads(data or b"")["at"])
    return None


@dataclass
class Readers:
    """The readers of the runs that were asked for last. May be used by many threads."""

    most: int = MOST_RUNS
    clock: Callable[[], float] = time.time
    _readers: OrderedDict[object, Reader] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, store: Store, *, key: object = None) -> Reader:
        """The reader of the run at a store.

        Args:
            store: where the run is stored.
            key: distinguishes stores of one URI that are opened with different rights. Default: the URI.
        """
        key = store.uri if key is None else key
        with self._lock:
            reader = self._readers.get(key)
            if reader is None:
                reader = self._readers[key] = Reader(store, clock=self.clock)
            self._readers.move_to_end(key)
            while len(self._readers) > self.most:
                self._readers.popitem(last=False)
            return reader
