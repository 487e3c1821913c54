"""Filling a state from a checkpoint: what is read of each file, by which request and by which thread."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Reader
from airflow_elastic.runtime.filling import Filling, Stretch, skip
from airflow_elastic.runtime.nearest import Files
from airflow_elastic.runtime.needs import Need
from airflow_elastic.runtime.slots import Slot
from airflow_elastic.runtime.stage import Memory
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.index import Piece
from airflow_elastic.spec.manifest import Manifest

_FAR_RUN_BYTES = 16 << 20  # read with one request
_TURN_BYTES = 64 << 20  # read by one thread before it tells, where requests take less time than taking turns
_TURNS = 8  # of each thread at the least, that none waits long for the last one
#: Bytes that are rather read than asked around: of a network, what comes while a request takes its way.
_NEAR_GAP_BYTES, _FAR_GAP_BYTES = 128 << 10, 2 << 20

#: Of this machine.
PROCESSORS = os.cpu_count() or 1

#: Is told how many bytes are read, of how many.
Told = Callable[[int, int], None]


def untold(done: int, whole: int) -> None:
    """Told to nobody."""


class Loading:
    """One state that is being filled from a checkpoint.

    Attributes:
        manifest: of the checkpoint.
        needed: how many bytes are read of each file, by its key.
        file_bytes: of all of them.
        memory_bytes: how much is read from memory instead.
    """

    def __init__(self, needs: Iterable[Need], manifest: Manifest, memory: Memory) -> None:
        self.manifest = manifest
        self._files: dict[str, list[Stretch]] = defaultdict(list)
        self._slots: dict[Slot, list[Stretch]] = defaultdict(list)
        self._values: list[Filling] = []
        for need in needs:
            key, entry = need.stored.file, need.stored.entry
            if held := memory.get((entry.key, entry.offsets if isinstance(entry, Piece) else ())):
                slot, at = held
                filling = Filling(need, "the memory of this worker's agent")
                self._slots[slot] += filling.stretches(at)
            else:
                filling = Filling(need, key)
                self._files[key] += filling.stretches(entry.at)
            if not isinstance(need.target, torch.Tensor):
                self._values.append(filling)
        self.needed = {key: sum(one.size for one in found) for key, found in self._files.items()}
        self.file_bytes = sum(self.needed.values())
        self.memory_bytes = sum(one.size for found in self._slots.values() for one in found)

    def bytes_of(self, keys: Container[str]) -> int:
        """How many of the bytes that are read come from these files."""
        return sum(size for key, size in self.needed.items() if key in keys)

    def read(self, store: Files, told: Told = untold, processors: int = PROCESSORS) -> None:
        """Read everything. What was read before something turned out to be damaged is in the state already.

        Args:
            store: where the files lie.
            told: called with the bytes that are read so far, and all that are to be.
            processors: how many this rank has for itself: where it shares them, more threads only take turns.

        Raises:
            CheckpointDamaged: something is not what was committed, and was not unpickled.
            InvalidInput: a value is of a type that is not trusted, and was not unpickled.
            StoreError: the storage failed.
        """
        self._check_sizes(store)
        is_near = not self.needed or store.local_path(self.manifest.data.rstrip("/")) is not None
        done, whole = 0, self.file_bytes + self.memory_bytes
        sources = [(_of(slot), found) for slot, found in self._slots.items()]
        sources += [(partial(store.stream, key), found) for key, found in self._files.items()]
        readers = min(4, processors) if is_near else min(32, 4 * processors)  # a network wants many requests
        turn = min(_TURN_BYTES, whole // (readers * _TURNS)) if is_near else 0
        run, gap = (turn, _NEAR_GAP_BYTES) if is_near else (_FAR_RUN_BYTES, _FAR_GAP_BYTES)
        runs = [(source, one) for source, found in sources for one in _runs(found, run, gap)]
        told(done, whole)
        pool = ThreadPoolExecutor(readers)
        try:
            for one in as_completed([pool.submit(_take_turn, some) for some in _turns(runs, turn)]):
                done += one.result()
                told(done, whole)
        except StoreError as error:
            if is_near:  # of a disk it may be this one place that is bad
                raise CheckpointDamaged(str(error)) from error
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        for value in self._values:
            value.unpickle()

    def _check_sizes(self, store: Files) -> None:
        found = {entry.key: entry.size for entry in store.list(self.manifest.data)} if self.needed else {}
        for file in self.manifest.files:
            if file.key in self._files and found.get(file.key) != file.size:
                has = (
                    f"has {found[file.key]} bytes instead of {file.size}"
                    if file.key in found
                    else "is missing"
                )
                raise CheckpointDamaged(f"{file.key} {has}")


def _runs(wanted: Iterable[Stretch], most: int, most_gap: int) -> list[list[Stretch]]:
    """The same, as what is read with one request: so many bytes, or a stretch; over gaps of so many at the most."""
    runs: list[list[Stretch]] = []
    end = 0
    for one in sorted(wanted, key=lambda one: one.place):
        gap, size = one.place - end, one.place + one.size - runs[-1][0].place if runs else 0
        if not runs or not 0 <= gap <= most_gap or size > most:
            runs.append([])
        runs[-1].append(one)
        end = one.place + one.size
    return runs


_Source = Callable[[int, int], AbstractContextManager[Reader]]
_Run = tuple[_Source, list[Stretch]]


def _turns(runs: Iterable[_Run], most: int) -> list[list[_Run]]:
    """The same, as what a thread reads before it tells: one of them, or several that together are so many bytes."""
    turns: list[list[_Run]] = []
    left = 0
    for run in runs:
        size = sum(one.size for one in run[1])
        if not turns or size > left:
            turns.append([])
            left = most
        turns[-1].append(run)
        left -= size
    return turns


def _take_turn(runs: list[_Run]) -> int:
    return sum(_read(source, run) for source, run in runs)


def _read(source: _Source, run: list[Stretch]) -> int:
    """Read neighbouring stretches, and check them; returns how many bytes they are."""
    at, end = run[0].place, run[-1].place + run[-1].size
    with source(at, end - at) as reader:
        for one in run:
            if one.place > at:
                skip(reader, one.place - at)
            one.filling.take(one.at, one.end, reader)
            at = one.place + one.size
    return sum(one.size for one in run)


def _of(slot: Slot) -> _Source:
    return lambda at, size: nullcontext(_SlotReader(slot, at))


class _SlotReader:
    """The bytes of a slot, from one on."""

    def __init__(self, slot: Slot, at: int) -> None:
        self._slot, self._at = slot, at

    def readinto(self, room: memoryview) -> int:
        count = os.preadv(self._slot.fileno(), [room], self._at)
        self._at += count
        return count
