"""Looks at runs: one for all triggers of a process that wait for the same run. Other things can be watched so, too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.control.runs import FRESH_SECONDS, Run
from airflow_elastic.core.conditions import Look
from airflow_elastic.core.history import select
from airflow_elastic.core.status_document import STATUS_VERSION
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import EngineError, RunMissing, StoreError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.checkpoints.manifest import Manifest

#: The usual throughput is read again from the history after so many seconds.
_USUAL_SECONDS = 600.0


class RunReader:
    """Looks at one run. Blocks. A look is one request: the status document, as the run's controller writes it.

    The journal is read instead if no controller has written for a minute. It is also read if the document says that the
    run has ended, because the run may have been reopened since.

    Args:
        store: where the run is stored.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._manifests: dict[int, Manifest] = {}
        self._listed: object = None
        self._usual: tuple[float, float | None] = float("-inf"), None

    def look(self, reads: Iterable[str] = ()) -> Look | None:
        """The run as it is now; None if there is none yet.

        Args:
            reads: what else conditions need: `checkpoints`, `throughput`.

        Raises:
            StoreError: the storage does not answer.
        """
        now = time.time()
        document = self._document(now)
        if document is None:
            return None
        manifests = self._checkpoints(document) if "checkpoints" in reads else ()
        return Look(document, now, manifests, self._throughput() if "throughput" in reads else None)

    def summary(self) -> dict[str, Any]:
        """`Look.summary` of the run now. Raises RunMissing."""
        look = self.look()
        if look is None:
            raise RunMissing(f"{self._store.uri} holds no run: it was removed")
        return look.summary()

    def _document(self, now: float) -> dict[str, Any] | None:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            written = json.loads(self._store.get(layout.STATUS) or b"")
            same = written["version"] == STATUS_VERSION and written["run"]["uri"] == self._store.uri
            if same and not written["outcome"] and now - written["at"] <= FRESH_SECONDS:
                return dict(written)
        try:
            return Run(self._store).status()
        except RunMissing:
            return None

    def _checkpoints(self, document: dict[str, Any]) -> tuple[Manifest, ...]:
        """The readable checkpoints. They are listed again when the controller has seen another one."""
        seen = document["checkpoints"]["committed"], document["checkpoints"]["newest"], document["outcome"]
        if seen != self._listed or self._listed is None:
            there = checkpoints.steps(self._store)
            new = checkpoints.at_once(self._manifest, [step for step in there if step not in self._manifests])
            known = {**self._manifests, **{one.step: one for one in new if one is not None}}
            self._manifests = {step: known[step] for step in there if step in known}
            self._listed = seen
        return tuple(self._manifests.values())

    def _manifest(self, step: int) -> Manifest | None:
        try:
            return checkpoints.read(self._store, step)
        except CheckpointDamaged:
            return None

    def _throughput(self) -> float | None:
        """The median throughput of the run so far, samples/s."""
        read_at, usual = self._usual
        if time.monotonic() - read_at > _USUAL_SECONDS:
            series = select(read_history(self._store), names=["samples_per_second"])["series"]
            told = series.get("samples_per_second", {}).get("mean", ())
            speeds = [speed for speed in told if isinstance(speed, float) and speed > 0]
            usual = statistics.median(speeds) if speeds else None
            self._usual = time.monotonic(), usual
        return usual


class Reader(Protocol):
    """Looks at one thing, such as a run. Blocks."""

    def look(self, reads: Iterable[str] = ()) -> Any:
        """What is seen now. Raises StoreError or EngineError if it cannot be seen for now."""
        ...


class _Watch:
    """One reader, and the triggers that wait for its next look."""

    def __init__(self, open_reader: Callable[[], Reader]) -> None:
        self._open_reader = open_reader
        self._waiting: dict[object, tuple[float, frozenset[str]]] = {}
        self._newest: tuple[float, Any] | None = None
        self._next: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._joined = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    async def looks(self, seconds: float, reads: frozenset[str]) -> AsyncGenerator[Any, None]:
        me = object()
        self._waiting[me] = seconds, reads
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._work(), name="looks at a run")
            elif self._newest is not None and not reads and time.monotonic() - self._newest[0] < seconds:
                yield self._newest[1]
            self._joined.set()
            while True:
                yield await asyncio.shield(self._next)
        finally:
            del self._waiting[me]
            if not self._waiting and self._task is not None:
                self._task.cancel()

    async def _work(self) -> None:
        try:
            reader = await asyncio.to_thread(self._open_reader)
            while True:
                found = await self._look(reader)
                self._newest = time.monotonic(), found
                done, self._next = self._next, asyncio.get_running_loop().create_future()
                done.set_result(found)
                await self._pause(self._newest[0])
        except Exception as error:  # every trigger that waits gets it
            self._next.set_exception(error)

    async def _look(self, reader: Reader) -> Any:
        reads = frozenset[str]().union(*(reads for _, reads in self._waiting.values()))
        try:
            return await asyncio.to_thread(reader.look, reads)
        except (StoreError, EngineError) as error:
            return error

    async def _pause(self, since: float) -> None:
        """Wait for the shortest interval that any trigger has; one that joins may have a shorter one."""
        while True:
            self._joined.clear()
            shortest = min((seconds for seconds, _ in self._waiting.values()), default=1.0)
            left = since + shortest - time.monotonic()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._joined.wait(), left)


_watches: dict[tuple[object, ...], _Watch] = {}


async def looks(
    key: tuple[object, ...],
    open_reader: Callable[[], Reader],
    seconds: float,
    reads: frozenset[str] = frozenset(),
) -> AsyncGenerator[Any, None]:
    """Looks at a run, or whatever the reader looks at, for as long as they are asked for.

    All who ask with the same key in one event loop get the same looks: at the shortest of their intervals.

    Args:
        key: what is looked at: the run URI, and what it is opened with.
        open_reader: makes the reader. May block.
        seconds: the longest time between two looks.
        reads: see `RunReader.look`.

    Yields:
        What `Reader.look` returns; the StoreError or EngineError if it cannot be seen for now.

    Raises:
        ElasticError: the reader cannot be opened.
    """
    place = (id(asyncio.get_running_loop()), *key)
    watch = _watches.get(place)
    if watch is None or watch.is_idle:
        watch = _watches[place] = _Watch(open_reader)
    try:
        async with contextlib.aclosing(watch.looks(seconds, reads)) as found:
            async for look in found:
                yield look
    finally:
        if watch.is_idle and _watches.get(place) is watch:
            del _watches[place]
