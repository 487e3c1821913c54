"""Fill a state from a checkpoint: divide the bytes of each file among requests and threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import SimpleQueue

import torch

from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open_range import OpenRange
from airflow_elastic.adapters.storage.store import Reader
from airflow_elastic.runtime.checkpoint.read.fill import BlockRange, ItemReader, skip
from airflow_elastic.runtime.checkpoint.read.read_plan import ReadItem
from airflow_elastic.runtime.environment import PROCESSORS
from airflow_elastic.runtime.tiers.shared_memory import Memory, StagingSlot
from airflow_elastic.runtime.tiers.tiered_files import ReadableFiles
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import StoreError

_REQUEST_BYTES = 16 << 20  # of one request; up to four times as many if each thread still has two requests,
_MORE_TIMES = 4  # which took a tenth less time
_GAP_BYTES = 2 << 20  # a smaller gap is read: these bytes arrive in the latency of one more request

_PROGRESS_BYTES = 64 << 20  # progress is reported after so many bytes,
_PROGRESS_TIMES = 16  # and at least so many times

#: Called with the bytes that are read so far, and all bytes.
ProgressCallback = Callable[[int, int], None]


def no_progress(done: int, whole: int) -> None:
    """Report no progress."""


class StateLoader:
    """Fills one state from a checkpoint.

    Attributes:
        manifest: of the checkpoint.
        needed: how many bytes are read of each file, by its key.
        file_bytes: their sum.
        memory_bytes: how many bytes are read from memory instead.
    """

    def __init__(self, needs: Iterable[ReadItem], manifest: Manifest, memory: Memory) -> None:
        self.manifest = manifest
        self._files: dict[str, list[BlockRange]] = defaultdict(list)
        self._slots: dict[StagingSlot, list[BlockRange]] = defaultdict(list)
        self._values: list[ItemReader] = []
        for need in needs:
            key, entry = need.stored.file, need.stored.entry
            if held := memory.get(need.stored.part):
                slot, at = held
                filling = ItemReader(need, "the memory of this worker's agent")
                self._slots[slot] += filling.stretches(at)
            else:
                filling = ItemReader(need, key)
                self._files[key] += filling.stretches(entry.at)
            if not isinstance(need.room, torch.Tensor):
                self._values.append(filling)
        self.needed = {key: sum(one.size for one in found) for key, found in self._files.items()}
        self.file_bytes = sum(self.needed.values())
        self.memory_bytes = sum(one.size for found in self._slots.values() for one in found)

    def bytes_of(self, keys: Container[str]) -> int:
        """How many bytes are read from these files."""
        return sum(size for key, size in self.needed.items() if key in keys)

    def read(
        self, store: ReadableFiles, told: ProgressCallback = no_progress, processors: int = PROCESSORS
    ) -> None:
        """Read everything. After an error the state may be filled in part.

        Args:
            store: where the files are stored.
            told: called with the bytes that are read so far, and all bytes.
            processors: of this rank alone. More threads than processors would only take turns.

        Raises:
            CheckpointDamaged: a file is missing, or its bytes have changed; these bytes were not unpickled.
            InvalidInput: a value has a type that is not trusted. That value was not unpickled.
            StoreError: the storage failed.
        """
        self._check_sizes(store)
        threads = min(4, processors)
        many = min(32, 4 * processors)  # a network is fast only with many requests
        near, far = self._tasks(store, threads, many)
        if far:
            threads = many
        whole = self.file_bytes + self.memory_bytes
        reading = _Reading(min(_PROGRESS_BYTES, whole // _PROGRESS_TIMES))
        pool = ThreadPoolExecutor(threads)
        told(0, whole)
        try:
            for task in (*near, *far):
                pool.submit(_read, task, reading).add_done_callback(reading.news.put)
            left = len(near) + len(far)
            while left:
                news = reading.news.get()
                if isinstance(news, int):
                    told(news, whole)
                else:
                    left -= 1
                    news.result()
        except StoreError as error:
            # A disk may have one bad sector, so another checkpoint may be readable.
            if store.local_path(self.manifest.data.rstrip("/")) is not None:
                raise CheckpointDamaged(str(error)) from error
            raise
        finally:
            reading.over = True
            pool.shutdown(cancel_futures=True)
        if reading.done > reading.reported:
            told(whole, whole)
        for value in self._values:
            value.unpickle()

    def _tasks(
        self, store: ReadableFiles, threads: int, many: int
    ) -> tuple[list[list[_Run]], list[list[_Run]]]:
        """The tasks for threads: those that read from this machine, for `threads`, and from others, for `many`."""
        far = {key: some for key, some in self._files.items() if store.local_path(key) is None}
        share = self.bytes_of(far) // (2 * many)
        at_once = min(_MORE_TIMES * _REQUEST_BYTES, max(_REQUEST_BYTES, share))
        slots: list[_Run] = [(_of(slot), some) for slot, some in self._slots.items()]
        files: list[_Run] = []
        requests: list[list[_Run]] = []
        for key, some in self._files.items():
            source = partial(store.stream, key)
            if key not in far:
                files.append((source, some))
            else:
                requests += [[(source, run)] for run in _runs(some, at_once)]
        return [*_shares(slots, threads), *_shares(files, threads)], requests

    def _check_sizes(self, store: ReadableFiles) -> None:
        found = {entry.key: entry.size for entry in store.list(self.manifest.data)} if self.needed else {}
        for file in self.manifest.files:
            if file.key in self._files and found.get(file.key) != file.size:
                has = (
                    f"has {found[file.key]} bytes instead of {file.size}"
                    if file.key in found
                    else "is missing"
                )
                raise CheckpointDamaged(f"{file.key} {has}")


class _Reading:
    """The state that reading threads share.

    Attributes:
        over: threads should stop.
        done: bytes that are read.
        reported: bytes that were last reported.
        news: now and then the bytes that are read, and each task when it ends.
    """

    over = False
    done = reported = 0

    def __init__(self, often: int) -> None:
        self.news: SimpleQueue[int | Future[None]] = SimpleQueue()
        self._often, self._lock = often, threading.Lock()

    def add(self, size: int) -> None:
        """Count bytes that were read."""
        with self._lock:
            self.done += size
            if self.done - self.reported >= self._often:
                self.reported = self.done
                self.news.put(self.done)


_Source = Callable[[int, int], AbstractContextManager[Reader]]
_Run = tuple[_Source, list[BlockRange]]


def _shares(sources: Sequence[_Run], count: int) -> list[list[_Run]]:
    """Divide ranges on this machine into at most `count` parts of about the same size, each contiguous and in order.

    The kernel's read-ahead starts again wherever a new part begins. With parts of 16 MB, a disk was idle for a fifth of
    the time.
    """
    most = -(-sum(one.size for _, found in sources for one in found) // count)
    shares: list[list[_Run]] = []
    left = 0
    for source, found in sources:
        run: list[BlockRange] = []
        for one in sorted(found, key=lambda one: one.place):
            if not shares or left <= 0:
                shares.append([])
                run, left = [], most
            if not run or one.place < run[-1].place + run[-1].size:  # an index may say anything
                run = []
                shares[-1].append((source, run))
            run.append(one)
            left -= one.size
    return shares


def _runs(wanted: Iterable[BlockRange], most: int) -> list[list[BlockRange]]:
    """Group ranges on another machine into requests of at most `most` bytes."""
    runs: list[list[BlockRange]] = []
    end = 0
    for one in sorted(wanted, key=lambda one: one.place):
        gap, size = one.place - end, one.place + one.size - runs[-1][0].place if runs else 0
        if not runs or not 0 <= gap <= _GAP_BYTES or size > most:
            runs.append([])
        runs[-1].append(one)
        end = one.place + one.size
    return runs


def _read(runs: Iterable[_Run], reading: _Reading) -> None:
    """Read ranges, and check them."""
    for source, run in runs:
        at, end = run[0].place, run[-1].place + run[-1].size
        with source(at, end - at) as reader:
            for one in run:
                if reading.over:
                    return
                try:
                    if one.place > at:
                        skip(reader, one.place - at)
                    one.filling.take(one.at, one.end, reader)
                except EOFError as error:
                    raise CheckpointDamaged(f"{one.filling.where} ends before its end") from error
                at = one.place + one.size
                reading.add(one.size)


def _of(slot: StagingSlot) -> _Source:
    return lambda at, size: nullcontext(OpenRange(slot.fileno(), at, size))
