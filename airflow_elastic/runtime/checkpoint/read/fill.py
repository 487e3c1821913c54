"""One entry of a checkpoint on its way into a state: which of its blocks are read, into which memory; their checksums.

Only those blocks are read in which there is something that is needed. Each is checked while it is still in the
processor's cache, and goes straight to where it belongs.
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

# Or a block: read at once, then checked. Of more, the processor's cache loses what came first; with less, threads wait
# more often for Python's lock, and to be woken takes longer than to check half a megabyte.
_STRETCH_BYTES = 2 << 20
_SCRATCH_BYTES = 1 << 20


@dataclass(slots=True)
class BlockRange:
    """Blocks of an entry that are read together, from byte `at` of it to before `end`; `place` is where they lie."""

    filling: ItemReader
    at: int
    end: int
    place: int

    @property
    def size(self) -> int:
        """In bytes."""
        return self.end - self.at


class ItemReader:
    """What fills a part of a state.

    Args:
        need: the entry, and where it goes.
        where: what it is read from, for whom it may concern.

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
        """What has to be read of it, where it begins at this byte: blocks of which all is needed, several at once; and
        at its edges those of which only a part is, each by itself.
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
        """Room for what is needed of it, as it is stored."""
        first, last = self._needed
        if isinstance(self._entry, Blob) or not isinstance(self._need.room, torch.Tensor):
            return torch.empty(last - first, dtype=torch.uint8)
        lengths = self._entry.lengths
        if last - first < self._entry.size:
            lengths = (self._need.lengths[0], *lengths[1:])
        return torch.empty(lengths, dtype=getattr(torch, self._entry.dtype))

    @cached_property
    def _whole(self) -> memoryview:
        """The same as bytes."""
        return bytes_of(self._stored) if self._stored.numel() else memoryview(b"")

    def take(self, at: int, end: int, reader: Reader) -> None:
        """Read a stretch, and check it. Raises CheckpointDamaged where it is not what was committed, and EOFError."""
        whole = self._place
        if whole is None:
            with self._lock:  # not had before it is needed: there may be more than there is memory
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
        """Read the blocks from byte `at` of the entry on."""
        _read(reader, room)
        if room and checksums.of(room) != _expected(self._need.stored, at, len(room)):
            raise CheckpointDamaged(
                f"{self._entry.key} in {self.where} is not what was committed: its bytes have changed"
            )

    def unpickle(self) -> None:
        """Put what is no tensor into its place, when all that is read is known to be what was committed."""
        if not isinstance(self._need.room, torch.Tensor):
            self._need.room(from_bytes(self._entry.key, self._stored.numpy().tobytes()))

    def _is_last(self) -> bool:
        """Whether all its stretches have been read with this one."""
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
    """Whether the bytes that come are those of an entry."""
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
    """How many bytes are read at once, where blocks have so many."""
    return max(block, _STRETCH_BYTES - _STRETCH_BYTES % block)


def _expected(stored: StoredEntry, at: int, size: int) -> str:
    """The checksum of so many bytes of an entry, from the block on that begins at this byte."""
    entry, block = stored.entry, stored.block_bytes
    first = at // block
    try:
        return checksums.joined(entry.checksums[first : first + block_count(size, block)], block, size)
    except ValueError as error:  # whoever can write an index can write anything there
        raise CheckpointDamaged(f"{entry.key} has no checksums that can be read: {error}") from error


def skip(reader: Reader, size: int) -> None:
    """Leave out what nobody needs: of what comes from another machine it is read. Raises EOFError at its end."""
    if isinstance(reader, OpenRange):
        reader.skip(size)
        return
    for at in range(0, size, _SCRATCH_BYTES):
        _read(reader, _scratch(min(_SCRATCH_BYTES, size - at)))


_own = threading.local()


def _scratch(size: int) -> memoryview:
    """Memory of this thread's own: to have new one each time takes longer than to read."""
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
