"""Filling a state from a checkpoint: what is read goes straight to where it belongs, in stretches, several at once.

Of an entry, only those blocks are read in which there is something that is needed. Each is checked while it is still in
the processor's cache.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Reader
from airflow_elastic.runtime.nearest import Files
from airflow_elastic.runtime.needs import Need
from airflow_elastic.runtime.slots import Slot
from airflow_elastic.runtime.stage import Memory
from airflow_elastic.runtime.values import from_bytes
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.index import BLOCK_BYTES, Blob, Piece, blocks
from airflow_elastic.spec.manifest import Manifest

_RUN_BYTES = 16 << 20  # read with one request
_TURN_BYTES = 64 << 20  # read by one thread before it tells, where requests take less time than taking turns
_TURNS = 8  # of each thread at the least, that none waits long for the last one
_GAP_BYTES = 1 << 20  # that are rather read than asked around
_STRETCH_BYTES = 2 * BLOCK_BYTES  # taken at once: fewer of them are less to keep count of
_PART_BYTES = 256 << 10  # read and summed up at once: of more, the processor's cache has lost what came first

_CPUS = os.cpu_count() or 1
_NEAR_READERS = min(4, _CPUS)  # the disk, or memory, is the limit soon
_FAR_READERS = min(32, 4 * _CPUS)  # a network wants many requests

#: Is told how many bytes are read, of how many.
Told = Callable[[int, int], None]


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
        self._files: dict[str, list[_Stretch]] = defaultdict(list)
        self._slots: dict[Slot, list[_Stretch]] = defaultdict(list)
        self._values: list[_Filling] = []
        for need in needs:
            key, entry = need.stored.file, need.stored.entry
            if held := memory.get((entry.key, entry.offsets if isinstance(entry, Piece) else ())):
                slot, at = held
                filling = _Filling(need, "the memory of this worker's agent")
                self._slots[slot] += filling.stretches(at)
            else:
                filling = _Filling(need, key)
                self._files[key] += filling.stretches(entry.at)
            if not isinstance(need.target, torch.Tensor):
                self._values.append(filling)
        self.needed = {key: sum(one.size for one in found) for key, found in self._files.items()}
        self.file_bytes = sum(self.needed.values())
        self.memory_bytes = sum(one.size for found in self._slots.values() for one in found)

    def bytes_of(self, keys: Container[str]) -> int:
        """How many of the bytes that are read come from these files."""
        return sum(size for key, size in self.needed.items() if key in keys)

    def read(self, store: Files, told: Told = lambda done, whole: None) -> None:
        """Read everything. What was read before something turned out to be damaged is in the state already.

        Args:
            store: where the files lie.
            told: called with the bytes that are read so far, and all that are to be.

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
        runs = [(source, run) for source, found in sources for run in _runs(found)]
        turn = min(_TURN_BYTES, whole // (_NEAR_READERS * _TURNS)) if is_near else 0
        told(done, whole)
        pool = ThreadPoolExecutor(_NEAR_READERS if is_near else _FAR_READERS)
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


class _Filling:
    """One entry on its way into the state."""

    def __init__(self, need: Need, where: str) -> None:
        self._need, self._entry, self._where = need, need.stored.entry, where
        self._lock = threading.Lock()
        self._left = 0

    def stretches(self, start: int) -> list[_Stretch]:
        """What has to be read of it, where it begins at this byte: its blocks, and neighbours of which all is needed
        together.
        """
        first, last = self._needed
        at, size = first - first % BLOCK_BYTES, self._entry.size
        bounds: list[tuple[int, int]] = []
        while at < last:
            end = min(size, at + _STRETCH_BYTES)
            if at < first or end > last:  # a block of which only a part is needed stands by itself
                end = min(size, at + BLOCK_BYTES)
            bounds.append((at, end))
            at = end
        bounds = bounds or [(0, 0)]
        self._left = len(bounds)
        return [_Stretch(self, at, end, start + at) for at, end in bounds]

    @cached_property
    def _needed(self) -> tuple[int, int]:
        """The first byte of the entry that is needed, and the one behind the last: of rows that follow each other."""
        if not isinstance(self._entry, Piece) or self._target is None or not self._entry.lengths:
            return (0, self._entry.size)
        (start, *others), (count, *rest) = self._need.start, self._target.shape
        if any(others) or tuple(rest) != self._entry.lengths[1:]:
            return (0, self._entry.size)
        row = self._entry.size // self._entry.lengths[0]
        return (start * row, (start + count) * row)

    @property
    def _target(self) -> torch.Tensor | None:
        """Where it is to be in the state; None where that is no tensor."""
        return self._need.target if isinstance(self._need.target, torch.Tensor) else None

    @cached_property
    def _stored(self) -> torch.Tensor:
        """What is needed of it, as it is stored: the target itself, where it belongs there as it is."""
        first, last = self._needed
        if self._target is None or isinstance(self._entry, Blob):
            return torch.empty(last - first, dtype=torch.uint8)
        target, dtype = self._target, getattr(torch, self._entry.dtype)
        same = target.dtype is dtype and target.device.type == "cpu" and target.is_contiguous()
        if same and target.numel() * target.element_size() == last - first:
            return target
        lengths = self._entry.lengths
        if last - first < self._entry.size:
            lengths = (target.shape[0], *lengths[1:])
        return torch.empty(lengths, dtype=dtype)

    @cached_property
    def _whole(self) -> memoryview:
        """The same as bytes."""
        stored = self._stored
        flat = stored.as_strided((stored.numel(),), (1,))  # of one element alone, a view may have any stride
        return flat.view(torch.uint8).numpy().data if stored.numel() else memoryview(b"")

    def take(self, at: int, end: int, reader: Reader) -> None:
        """Read a stretch, and check it. Raises CheckpointDamaged where it is not what was committed."""
        with self._lock:  # not had before it is needed: there may be more than there is memory
            whole = self._whole
        first, last = self._needed
        inside = first <= at and end <= last
        room = whole[at - first : end - first] if inside else _scratch(end - at)
        expected = self._entry.checksums[at // BLOCK_BYTES :]
        for (begin, behind), checksum in zip(blocks(end - at), expected, strict=False):
            if _fill_and_sum(reader, room[begin:behind]) != checksum:
                raise CheckpointDamaged(
                    f"{self._entry.key} in {self._where} is not what was committed: its bytes have changed"
                )
        if not inside:
            low, high = max(at, first), min(end, last)
            whole[low - first : high - first] = room[low - at : high - at]
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._put_into_place()

    def unpickle(self) -> None:
        """Put what is no tensor into its place, when all that is read is known to be what was committed."""
        if not isinstance(self._need.target, torch.Tensor):
            self._need.target(from_bytes(self._entry.key, self._stored.numpy().tobytes()))

    def _put_into_place(self) -> None:
        target, stored = self._need.target, self._stored
        if isinstance(target, torch.Tensor) and stored is not target:
            for dim, (start, length) in enumerate(zip(self._need.start, target.shape, strict=True)):
                if stored.shape[dim] != length:
                    stored = stored.narrow(dim, start, length)
            target.copy_(stored)
            del self._stored, self._whole


@dataclass(slots=True)
class _Stretch:
    """Blocks of an entry that are read together, from byte `at` of it to before `end`; `place` is where they lie."""

    filling: _Filling
    at: int
    end: int
    place: int

    @property
    def size(self) -> int:
        return self.end - self.at


def _runs(wanted: Iterable[_Stretch]) -> list[list[_Stretch]]:
    """The same, as what is read with one request."""
    runs: list[list[_Stretch]] = []
    end = 0
    for one in sorted(wanted, key=lambda one: one.place):
        gap, size = one.place - end, one.place + one.size - runs[-1][0].place if runs else 0
        if not runs or not 0 <= gap <= _GAP_BYTES or size > _RUN_BYTES:
            runs.append([])
        runs[-1].append(one)
        end = one.place + one.size
    return runs


_Source = Callable[[int, int], AbstractContextManager[Reader]]
_Run = tuple[_Source, list[_Stretch]]


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


def _read(source: _Source, run: list[_Stretch]) -> int:
    """Read neighbouring stretches, and check them; returns how many bytes they are."""
    at, end = run[0].place, run[-1].place + run[-1].size
    with source(at, end - at) as reader:
        for one in run:
            if one.place > at:
                _fill(reader, _scratch(one.place - at))
            one.filling.take(one.at, one.end, reader)
            at = one.place + one.size
    return sum(one.size for one in run)


_own = threading.local()


def _scratch(size: int) -> memoryview:
    """Memory of this thread's own, of at most a block or a gap: to have new one each time takes longer than to read."""
    if not hasattr(_own, "scratch"):
        _own.scratch = memoryview(bytearray(max(_GAP_BYTES, BLOCK_BYTES)))
    scratch: memoryview = _own.scratch
    return scratch[:size]


def _fill(reader: Reader, room: memoryview) -> None:
    at = 0
    while at < len(room):
        count = reader.readinto(room[at:])
        if not count:
            raise CheckpointDamaged("a file of it ends before its end")
        at += count


def _fill_and_sum(reader: Reader, room: memoryview) -> str:
    digest = checksums.Crc64()
    for at in range(0, len(room), _PART_BYTES):
        part = room[at : at + _PART_BYTES]
        _fill(reader, part)
        digest.update(part)
    return digest.hexdigest()


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
