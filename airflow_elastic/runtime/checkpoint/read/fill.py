"""Read an entry of a checkpoint into a state: choose its blocks, check their checksums, and put them into place.

Only blocks with needed bytes are read. Each is checked while it is still in the processor's cache. If possible, it is
read straight into the tensor's memory.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property

import torch

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open_range import OpenRange
from airflow_elastic.adapters.storage.store import Reader
from airflow_elastic.runtime.checkpoint.format.values import from_bytes
from airflow_elastic.runtime.checkpoint.read.read_plan import ReadItem, StoredEntry, bytes_of
from airflow_elastic.spec.checkpoints.index import Blob, block_count

# Read at once and then checked, if blocks are not larger. More would not fit the processor's cache. With less, threads
# wait for Python's lock more often, and to wake a thread takes longer than to check half a megabyte.
_STRETCH_BYTES = 2 << 20
_SCRATCH_BYTES = 1 << 20


@dataclass(slots=True)
class BlockRange:
    """Blocks of an entry that are read together: bytes `at` to before `end` of the entry, from byte `place` of a file
    or slot on.
    """

    filling: ItemReader
    at: int
    end: int
    place: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.at


class ItemReader:
    """Fills a part of a state from one entry.

    Args:
        need: the entry, and where it goes.
        where: what it is read from, for error messages.

    Attributes:
        where: as given.
    """

    def __init__(self, need: ReadItem, where: str) -> None:
        self._need, self._entry, self.where = need, need.stored.entry, where
        self._needed = rows = need.rows() or (0, self._entry.size)
        place = need.place()
        self._place = place if place is not None and len(place) == rows[1] - rows[0] else None
        self._lock = threading.Lock()
        self._left = 0

    def stretches(self, start: int) -> list[BlockRange]:
        """The ranges to read, if the entry begins at byte `start`.

        Blocks that are needed completely are read several at once. At the edges, blocks that are needed in part are
        ranges of their own.
        """
        block, size, (first, last) = self._need.stored.block_bytes, self._entry.size, self._needed
        edge = first - first % block
        low = first if edge == first else edge + block
        high = last if last == size else last - last % block
        bounds = [(edge, min(size, edge + block))] if edge < first else []
        step = _step(block)
        bounds += [(at, min(high, at + step)) for at in range(low, high, step)]
        if low <= high < last:
            bounds.append((high, min(size, high + block)))
        bounds = bounds or [(0, 0)]
        self._left = len(bounds)
        return [BlockRange(self, at, end, start + at) for at, end in bounds]

    @cached_property
    def _stored(self) -> torch.Tensor:
        """A new tensor for the needed part, in the layout of the file."""
        first, last = self._needed
        if isinstance(self._entry, Blob) or not isinstance(self._need.room, torch.Tensor):
            return torch.empty(last - first, dtype=torch.uint8)
        lengths = self._entry.lengths
        if last - first < self._entry.size:
            lengths = (self._need.lengths[0], *lengths[1:])
        return torch.empty(lengths, dtype=getattr(torch, self._entry.dtype))

    @cached_property
    def _whole(self) -> memoryview:
        """The memory of `_stored`."""
        return bytes_of(self._stored) if self._stored.numel() else memoryview(b"")

    def take(self, at: int, end: int, reader: Reader) -> None:
        """Read and check a range. Raises CheckpointDamaged if its bytes have changed, EOFError if they end early."""
        whole = self._place
        if whole is None:
            with self._lock:  # allocated late, because all of these together may not fit into memory
                whole = self._whole
        first, last = self._needed
        inside = first <= at and end <= last
        room = whole[at - first : end - first] if inside else _scratch(end - at)
        self._fill(room, at, reader)
        if not inside:
            low, high = max(at, first), min(end, last)
            whole[low - first : high - first] = room[low - at : high - at]
        if self._place is None and self._is_last():
            self._put_into_place()

    def _fill(self, room: memoryview, at: int, reader: Reader) -> None:
        """Read and check the blocks from byte `at` of the entry on."""
        _read(reader, room)
        if room and checksums.of(room) != _expected(self._need.stored, at, len(room)):
            raise CheckpointDamaged(
                f"{self._entry.key} in {self.where} is not what was committed: its bytes have changed"
            )

    def unpickle(self) -> None:
        """Unpickle a value that is no tensor, and put it into the state. Only call this when all bytes are checked."""
        if not isinstance(self._need.room, torch.Tensor):
            self._need.room(from_bytes(self._entry.key, self._stored.numpy().tobytes()))

    def _is_last(self) -> bool:
        """Whether this range was the last one to be read."""
        with self._lock:
            self._left -= 1
            return not self._left

    def _put_into_place(self) -> None:
        target, stored = self._need.target, self._stored
        if target is None:
            return
        for dim, (start, length) in enumerate(zip(self._need.start, target.shape, strict=True)):
            if stored.shape[dim] != length:
                stored = stored.narrow(dim, start, length)
        target.copy_(stored)
        del self._stored, self._whole


def is_what_was_committed(stored: StoredEntry, reader: Reader) -> bool:
    """Whether the reader's bytes match an entry's checksums."""
    size, step = stored.entry.size, _step(stored.block_bytes)
    try:
        for at in range(0, size, step):
            room = _scratch(min(step, size - at))
            _read(reader, room)
            if checksums.of(room) != _expected(stored, at, len(room)):
                return False
    except (EOFError, CheckpointDamaged):
        return False
    return True


def _step(block: int) -> int:
    """How many bytes to read at once, for this size of blocks."""
    return max(block, _STRETCH_BYTES - _STRETCH_BYTES % block)


def _expected(stored: StoredEntry, at: int, size: int) -> str:
    """The checksum of `size` bytes of an entry, from the block that begins at byte `at`."""
    entry, block = stored.entry, stored.block_bytes
    first = at // block
    try:
        return checksums.joined(entry.checksums[first : first + block_count(size, block)], block, size)
    except ValueError as error:  # an index can hold any text here
        raise CheckpointDamaged(f"{entry.key} has no checksums that can be read: {error}") from error


def skip(reader: Reader, size: int) -> None:
    """Skip bytes that are not needed. From another machine they are read nevertheless. Raises EOFError at the end."""
    if isinstance(reader, OpenRange):
        reader.skip(size)
        return
    for at in range(0, size, _SCRATCH_BYTES):
        _read(reader, _scratch(min(_SCRATCH_BYTES, size - at)))


_own = threading.local()


def _scratch(size: int) -> memoryview:
    """This thread's buffer: to allocate a new one each time takes longer than to read."""
    scratch: memoryview | None = getattr(_own, "scratch", None)
    if scratch is None or len(scratch) < size:
        scratch = _own.scratch = memoryview(bytearray(max(size, _SCRATCH_BYTES)))
    return scratch[:size]


def _read(reader: Reader, room: memoryview) -> None:
    at = 0
    while at < len(room):
        count = reader.readinto(room[at:])
        if not count:
            raise EOFError
        at += count
