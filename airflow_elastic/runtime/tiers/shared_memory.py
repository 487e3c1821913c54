"""Memory of a worker's agent into which its ranks copy their state: it outlives them, and vanishes with the agent.

Each rank has two slots, so one always holds a complete state. A rank copies into one while the agent writes the other
to storage, or while the other holds the newest state. A slot is an anonymous file in memory (memfd), which ranks open
through /proc. It takes no space in /dev/shm, and no process that dies leaves it behind. A process locks a slot to read
or to write it; the kernel releases the lock when that process dies.

Staging into the memory of a process beside the trainer is the idea of DLRover's flash checkpoint. There the memory has
a name, and some process must remove it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.host.processes import populate
from airflow_elastic.spec.checkpoints.index import Index, TensorChunk
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.checkpoints.sample_records import Account

#: Slots of a rank.
COUNT = 2

#: The data begins here, after the header.
HEADER_BYTES = 4096

#: Space that is mapped ahead for the note: a fixed part, and 1/1024 of the data. An entry of the note takes some 200
#: bytes, for each 512 KiB of data or more. For a longer note the whole slot is mapped again.
_NOTE_BYTES = 1 << 20
_NOTE_PART = 1024

#: The header: 1 if the slot is complete, the note's offset and length, generation and step, and the time it was
#: finished. The time is in nanoseconds on this machine's monotonic clock.
_HEADER = struct.Struct("<QQQQQQ")

#: Where in the header a rank writes the file size that it will need.
_WANTED = struct.Struct("<Q")
_WANTED_AT = 64

_ZEROS = bytes(1 << 20)
_NOTHING = Index((), ())

#: How long a rank waits for its agent to provide memory. After that, the first save maps it.
_PROVIDED_SECONDS, _POLL_SECONDS = 600.0, 0.02

ENVIRONMENT = "AIRFLOW_ELASTIC_SLOTS"

#: How many bytes of memory an agent already has for a neighbour's states. Not set if it keeps no neighbour's states.
KEEPS = "AIRFLOW_ELASTIC_KEEPS"

#: The reason of a save that stays in memory, here and at the neighbour.
MEMORY = "memory"

#: The reason of a save that also goes to the disk of the worker's machine.
DISK = "disk"

#: Saves for these reasons reach storage only by a flush: when the worker stops, or after a failure.
IN_BETWEEN = (MEMORY, DISK)


@dataclass(frozen=True, slots=True)
class Note:
    """Describes what a slot holds: the state of one rank after one step.

    Attributes:
        step: optimizer steps done.
        generation: generation of the ranks that saved it.
        rank: the rank.
        world_size: number of all ranks.
        epoch, offset, samples: the position in the data.
        reason: why it was saved.
        kept_bytes: the first bytes of the data, which this rank writes to storage. The rest stays in memory.
        kept: the entries in these bytes.
        rest: the entries after them.
        perhaps: the entries after `rest`: this rank's copy of state that rank 0 writes for all.
        metrics: numbers from the script.
        versions: versions of the libraries.
        account: the samples that the rank has consumed, if the run accounts for them.
        phases: the run's phases so far; the last one is the phase of this state.
        notes: values from the script.
    """

    step: int
    generation: int
    rank: int
    world_size: int
    epoch: int
    offset: int
    samples: int
    reason: str
    kept_bytes: int
    kept: Index
    rest: Index
    perhaps: Index = _NOTHING
    metrics: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    account: Account | None = None
    phases: tuple[PhaseRecord, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


def _plain(value: Any) -> str:
    """Encode subclasses of str, such as torch's version, as plain strings."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a note has no {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_pieces: list[
    tuple[tuple[TensorChunk, ...], msgspec.Raw]
] = []  # the last ones, which come again with each save


def _encoded(note: Note) -> bytes:
    """A note as JSON. The thousands of pieces of a large state are encoded once."""
    plain = {each.name: getattr(note, each.name) for each in fields(note)}
    for name in ("kept", "rest", "perhaps"):
        index: Index = plain[name]
        plain[name] = {each.name: getattr(index, each.name) for each in fields(index)}
        plain[name]["pieces"] = _encoded_pieces(index.pieces)
    return _encode(plain)


def _encoded_pieces(pieces: tuple[TensorChunk, ...]) -> msgspec.Raw:
    for known, text in _pieces:
        if known is pieces:
            return text
    text = msgspec.Raw(_encode(pieces))
    _pieces[:] = [*_pieces[-2:], (pieces, text)]
    return text


_decoded = msgspec.json.Decoder(Note).decode


class StagingSlot:
    """One slot, opened by its agent or by a rank.

    Args:
        descriptor: descriptor of the file. The slot closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Not at exit: threads may use it until the process ends.
        weakref.finalize(self, os.close, descriptor).atexit = False
        if os.fstat(descriptor).st_size < HEADER_BYTES:
            os.ftruncate(descriptor, HEADER_BYTES)
        self._map: mmap.mmap | None = None
        self._mapping = threading.Lock()  # the second thread uses what the first one has mapped

    @classmethod
    def open(cls, path: str) -> StagingSlot:
        """Open the slot at a path below /proc. Raises OSError if its agent is gone."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def fileno(self) -> int:
        """The descriptor of its file. The data begins at `HEADER_BYTES`."""
        return self._descriptor

    def hold(self, *, reading: bool = False) -> bool:
        """Take the lock, shared for `reading`. Does not wait: returns False if another holder is in the way."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if reading else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def want(self, data_bytes: int) -> None:
        """Write into the header how much data there will be: the agent provides that memory while training goes on."""
        # Not through a mapping: it would map all the memory that the agent has provided for earlier ranks.
        os.pwrite(self._descriptor, _WANTED.pack(_file_bytes(data_bytes)), _WANTED_AT)

    def provide(self) -> None:
        """Allocate the memory that `want` asked for, unless the slot is locked.

        The first write to a new page of memory takes many times as long as a copy into a page that exists.

        Raises:
            OSError: there is not enough memory.
        """
        (wanted,) = _WANTED.unpack(os.pread(self._descriptor, _WANTED.size, _WANTED_AT))
        if wanted <= os.fstat(self._descriptor).st_size or not self.hold():
            return
        try:
            have = os.fstat(self._descriptor).st_size  # read again under the lock: a rank may have used it
            self._grow(wanted)
            for at in range(have, wanted, len(_ZEROS)):  # the kernel makes a page with the first write to it
                os.pwrite(self._descriptor, _ZEROS[: wanted - at], at)
        finally:
            self.release()

    def map_ahead(self, data_bytes: int) -> None:
        """Wait until the agent has provided the memory that `want` asked for, and map it. For a thread of its own.

        Raises:
            OSError: it cannot be mapped.
        """
        size, until = _file_bytes(data_bytes), time.monotonic() + _PROVIDED_SECONDS
        # A lock belongs to an open file. The thread that saves locks this one, so open the file again.
        other = StagingSlot.open(f"/proc/self/fd/{self._descriptor}")
        while os.fstat(self._descriptor).st_size < size or not other.hold(reading=True):
            if time.monotonic() > until:
                return
            time.sleep(_POLL_SECONDS)
        other.release()
        with self._mapping:
            if self._map is None or len(self._map) < size:
                have = os.fstat(self._descriptor).st_size
                mapped = mmap.mmap(self._descriptor, have, flags=mmap.MAP_SHARED)
                populate(mapped)
                self._map = mapped

    def is_mapped(self, data_bytes: int) -> bool:
        """Whether this process has mapped memory for so much data."""
        return self._map is not None and len(self._map) >= HEADER_BYTES + data_bytes

    def room(self, data_bytes: int) -> memoryview:
        """Memory for this many bytes of data, with all its pages allocated. The slot's former content is lost.

        Raises:
            OSError: there is not enough memory.
        """
        mapped = self._mapped(_file_bytes(data_bytes))
        _HEADER.pack_into(mapped, 0, 0, 0, 0, 0, 0, 0)
        return memoryview(mapped)[HEADER_BYTES : HEADER_BYTES + data_bytes]

    def finish(self, data_bytes: int, note: Note) -> None:
        """Mark the data as complete: from now on the slot holds this state."""
        text = _encoded(note)  # training waits for this
        at = HEADER_BYTES + data_bytes
        mapped = self._mapped(at + len(text))
        mapped[at : at + len(text)] = text
        for whole in (0, 1):
            _HEADER.pack_into(
                mapped, 0, whole, at, len(text), note.generation, note.step, time.monotonic_ns()
            )

    def note(self) -> Note | None:
        """The note of the state in the slot; None if the slot holds no complete state."""
        whole, at, size, *_ = self._header()
        # Read, and not mapped: ranks also look into the slots of other ranks.
        return _decoded(os.pread(self._descriptor, size, at)) if whole else None

    @property
    def age(self) -> tuple[int, int] | None:
        """Generation and step of its state, without reading the note; None if it holds no complete state."""
        whole, _, _, generation, step, _ = self._header()
        return (generation, step) if whole else None

    @property
    def finished_at(self) -> int:
        """When its state was complete, in nanoseconds on this machine's monotonic clock: a step may be saved twice."""
        return self._header()[-1]

    def _header(self) -> tuple[int, ...]:
        return _HEADER.unpack(os.pread(self._descriptor, _HEADER.size, 0))

    def data(self, data_bytes: int) -> memoryview:
        """The first bytes of its data."""
        return memoryview(self._mapped(HEADER_BYTES + data_bytes))[HEADER_BYTES : HEADER_BYTES + data_bytes]

    def _mapped(self, size: int) -> mmap.mmap:
        with self._mapping:
            if self._map is None or len(self._map) < size:
                self._grow(size)
                have = os.fstat(self._descriptor).st_size
                self._map = mmap.mmap(self._descriptor, have, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            return self._map

    def _grow(self, size: int) -> None:
        missing = size - os.fstat(self._descriptor).st_size
        if missing <= 0:
            return
        free = free_bytes()
        if free is not None and missing > free:  # the kernel would grant it, and then kill a process for it
            raise OSError(errno.ENOMEM, f"only {free / 1e9:.3g} GB are free")
        os.posix_fallocate(self._descriptor, 0, size)


def _file_bytes(data_bytes: int) -> int:
    return HEADER_BYTES + data_bytes + _NOTE_BYTES + data_bytes // _NOTE_PART


def common(slots: Sequence[Sequence[StagingSlot]]) -> list[tuple[int, int]]:
    """Generation and step of the states that all ranks have staged, oldest first.

    Args:
        slots: the slots of each rank of a worker.
    """
    return sorted(set.intersection(*({slot.age for slot in mine if slot.age} for mine in slots)))


def held(slots: Sequence[Sequence[StagingSlot]], age: tuple[int, int]) -> list[tuple[StagingSlot, Note]]:
    """For each rank, the slot with this state, locked for reading. Empty if one rank no longer has the state."""
    found: list[tuple[StagingSlot, Note]] = []
    with contextlib.ExitStack() as let_go:
        for mine in slots:
            slot = max((one for one in mine if one.age == age), key=lambda one: one.finished_at, default=None)
            if slot is None or not slot.hold(reading=True):
                return []
            let_go.callback(slot.release)
            note = slot.note()
            if note is None or slot.age != age:  # a rank has begun to overwrite it
                return []
            found.append((slot, note))
        let_go.pop_all()
    return found


def bytes_of(held: Sequence[tuple[StagingSlot, Note]]) -> int:
    """How many bytes these ranks write to storage."""
    return sum(note.kept_bytes for _, note in held)


class StagingSlots:
    """An agent's slots for all its ranks, and a pipe: a rank writes to it when it has filled a slot."""

    def __init__(self, ranks: int) -> None:
        self._descriptors = [
            [os.memfd_create(f"airflow-elastic-rank-{rank}-{number}") for number in range(COUNT)]
            for rank in range(ranks)
        ]
        self.of = [[StagingSlot(descriptor) for descriptor in mine] for mine in self._descriptors]
        self.news, self._poke = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for end in (self.news, self._poke):
            weakref.finalize(self, os.close, end).atexit = False

    def environment(self) -> dict[str, str]:
        """The environment variable by which a rank finds them."""
        folder = f"/proc/{os.getpid()}/fd"
        paths: dict[str, Any] = {
            "poke": f"{folder}/{self._poke}",
            "slots": [[f"{folder}/{descriptor}" for descriptor in mine] for mine in self._descriptors],
        }
        return {ENVIRONMENT: json.dumps(paths)}

    def opened_again(self) -> list[list[StagingSlot]]:
        """The same slots for another thread of the agent: a lock belongs to an open file, so each thread opens it."""
        return [
            [StagingSlot.open(f"/proc/self/fd/{descriptor}") for descriptor in mine]
            for mine in self._descriptors
        ]

    def poke(self) -> None:
        """Wake the thread that waits for news."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the thread wakes anyway
            os.write(self._poke, b".")


#: Where entries of a checkpoint are in shared memory. By key and offsets of the entry: its slot, and its first byte.
Memory = dict[tuple[str, tuple[int, ...]], tuple[StagingSlot, int]]
