"""Filling a state from a checkpoint: what is read goes straight to where it belongs, in parts, several at once.

Each part is checked while it is still in the processor's cache; the checksums of an entry's parts make that of the
entry, whoever has read them.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Reader, Store
from airflow_elastic.runtime.slots import Slot
from airflow_elastic.runtime.stage import Memory
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.index import Blob, Piece
from airflow_elastic.spec.manifest import Manifest

log = logging.getLogger(__name__)

_PART_BYTES = 16 << 20  # read by one thread, with one request
_CHUNK_BYTES = 1 << 20  # read, and then checked
_GAP_BYTES = 1 << 20  # that are rather read than asked around

_CPUS = os.cpu_count() or 1
_NEAR_READERS = min(4, _CPUS)  # the disk, or memory, is the limit soon
_FAR_READERS = min(32, 4 * _CPUS)  # a network wants many requests

_TOLD_SECONDS = 10.0


class Planner(DefaultLoadPlanner):
    """torch's, but values come to the CPU: those of all ranks would lie on the first GPU, where there is one."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(
            value, map_location="cpu", weights_only=False
        )  # its bytes are those that we wrote
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


class Loading:
    """One state that is being filled from a checkpoint.

    Attributes:
        manifest: of the checkpoint.
        keys: of the files that are read.
        file_bytes: how much of them.
        memory_bytes: how much is read from memory instead.
    """

    def __init__(
        self,
        planner: Planner,
        plan: LoadPlan,
        where: Mapping[MetadataIndex, tuple[str, Piece | Blob]],
        manifest: Manifest,
        memory: Memory,
    ) -> None:
        self.manifest = manifest
        self._files: dict[str, list[_Part]] = defaultdict(list)
        self._slots: dict[Slot, list[_Part]] = defaultdict(list)
        self.file_bytes = self.memory_bytes = 0
        for item in plan.items:
            key, entry = where[item.storage_index]
            if held := memory.get((entry.key, entry.offsets if isinstance(entry, Piece) else ())):
                slot, at = held
                self._slots[slot] += _parts(
                    _Filling(planner, item, entry, "the memory of this worker's agent"), at
                )
                self.memory_bytes += entry.size
            else:
                self._files[key] += _parts(_Filling(planner, item, entry, key), entry.at)
                self.file_bytes += entry.size
        self.keys = list(self._files)

    def read(self, store: Store) -> None:
        """Read everything. What was read before something turned out to be damaged is in the state already.

        Args:
            store: where the files lie.

        Raises:
            CheckpointDamaged: something is not what was committed. Nothing of it was unpickled.
            StoreError: the storage failed.
        """
        self._check_sizes(store)
        near = store.local_path(self.manifest.data.rstrip("/")) is not None
        reads = [
            partial(_read, _of(slot), run) for slot, parts in self._slots.items() for run in _runs(parts)
        ]
        for key, parts in self._files.items():
            source = partial(store.stream, key)
            reads += [partial(_read, source, run) for run in _runs(parts)]
        done, told, whole = 0, time.monotonic(), self.file_bytes + self.memory_bytes
        pool = ThreadPoolExecutor(_NEAR_READERS if near or not self.keys else _FAR_READERS)
        try:
            for one in as_completed([pool.submit(read) for read in reads]):
                done += one.result()
                if time.monotonic() - told > _TOLD_SECONDS:
                    told = time.monotonic()
                    log.info(
                        "checkpoint %d: %.3g of %.3g GB read", self.manifest.step, done / 1e9, whole / 1e9
                    )
        except StoreError as error:
            if near:  # of a disk it may be this one place that is bad
                raise CheckpointDamaged(str(error)) from error
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _check_sizes(self, store: Store) -> None:
        found = {entry.key: entry.size for entry in store.list(self.manifest.data)} if self.keys else {}
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

    def __init__(self, planner: Planner, item: ReadItem, entry: Piece | Blob, where: str) -> None:
        self._planner, self._item, self.entry, self._where = planner, item, entry, where
        self._sums: dict[int, tuple[int, int]] = {}
        self._lock = threading.Lock()

    @cached_property
    def _target(self) -> torch.Tensor | None:
        """Where it is to be in the state; None where that is no tensor."""
        if isinstance(self.entry, Blob) or self._item.type is LoadItemType.BYTE_IO:
            return None
        target: torch.Tensor = self._planner.resolve_tensor(self._item).detach()
        return target

    @cached_property
    def _stored(self) -> torch.Tensor:
        """What is read: the target itself, where it belongs there as it is."""
        if self._target is None or isinstance(self.entry, Blob):
            return torch.empty(self.entry.size, dtype=torch.uint8)
        target, dtype = self._target, getattr(torch, self.entry.dtype)
        whole = tuple(self._item.lengths) == self.entry.lengths
        if whole and target.dtype is dtype and target.device.type == "cpu" and target.is_contiguous():
            return target
        return torch.empty(self.entry.lengths, dtype=dtype)

    def room(self) -> memoryview:
        """Where its bytes belong. Not had before the first of them is read: there may be more than there is memory."""
        with self._lock:
            stored = self._stored
        return stored.reshape(-1).view(torch.uint8).numpy().data if stored.numel() else memoryview(b"")

    def took(self, begin: int, size: int, checksum: int) -> None:
        """A part is there. Raises CheckpointDamaged where that was the last one, and all are not what was committed."""
        with self._lock:
            self._sums[begin] = size, checksum
            if sum(size for size, _ in self._sums.values()) < self.entry.size:
                return
        if checksums.combined(self._sums[at] for at in sorted(self._sums)) != self.entry.checksum:
            raise CheckpointDamaged(
                f"{self.entry.key} in {self._where} is not what was committed: its bytes have changed"
            )
        self._put_into_place()

    def _put_into_place(self) -> None:
        if self._target is None:
            self._planner.load_bytes(self._item, io.BytesIO(self._stored.numpy().tobytes()))
            return
        if self._stored is not self._target:
            stored = self._stored
            for dim, (start, length) in enumerate(
                zip(self._item.storage_offsets, self._item.lengths, strict=True)
            ):
                stored = stored.narrow(dim, start, length)
            self._target.copy_(stored)
            del self._stored
        self._planner.commit_tensor(self._item, self._target)


@dataclass(frozen=True, slots=True)
class _Part:
    """So many bytes of an entry, from one on; and where they lie."""

    filling: _Filling
    begin: int
    size: int
    at: int


def _parts(filling: _Filling, at: int) -> Iterator[_Part]:
    size = filling.entry.size
    for begin in range(0, size or 1, _PART_BYTES):
        yield _Part(filling, begin, min(_PART_BYTES, size - begin), at + begin)


def _runs(parts: Iterable[_Part]) -> list[list[_Part]]:
    """The same, as what is read at one go."""
    runs: list[list[_Part]] = []
    end = 0
    for part in sorted(parts, key=lambda part: part.at):
        if (
            not runs
            or not 0 <= part.at - end <= _GAP_BYTES
            or part.at + part.size - runs[-1][0].at > _PART_BYTES
        ):
            runs.append([])
        runs[-1].append(part)
        end = part.at + part.size
    return runs


_Source = Callable[[int, int], AbstractContextManager[Reader]]


def _read(source: _Source, run: list[_Part]) -> int:
    """Read neighbouring parts, and check them; returns how many bytes they are."""
    at, end = run[0].at, run[-1].at + run[-1].size
    with source(at, end - at) as reader:
        for part in run:
            room = part.filling.room()[part.begin : part.begin + part.size]
            try:
                _take(reader, memoryview(bytearray(part.at - at)))
                checksum = _take(reader, room)
            except EOFError:
                raise CheckpointDamaged(f"{part.filling.entry.key}: its bytes are not all there") from None
            part.filling.took(part.begin, part.size, checksum)
            at = part.at + part.size
    return sum(part.size for part in run)


def _take(reader: Reader, room: memoryview) -> int:
    """Fill all of `room`; returns the checksum of what it holds then."""
    checksum, at = 0, 0
    while at < len(room):
        part = room[at : at + _CHUNK_BYTES]
        count = reader.readinto(part)
        if not count:
            raise EOFError
        checksum = checksums.further(checksum, part[:count])
        at += count
    return checksum


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
