"""Memory of a worker's agent into which its ranks copy their state: it outlives them, and vanishes with the agent.

Each rank has two slots, so that one always holds a whole state: while one is written to storage, or is the newest, the
other is copied into. A slot is a nameless file in memory (memfd), which ranks open through /proc: it needs no room in
/dev/shm, and no death of anybody leaves anything behind. Whoever reads or writes one holds its lock, which the kernel
lets go of when its holder dies.

The idea of staging into memory of a process beside the trainer is that of DLRover's flash checkpoint; there the memory
has a name, and somebody has to remove it.
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
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.host.processes import populate
from airflow_elastic.spec.checkpoints.index import Index
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.checkpoints.sample_records import Account

#: Slots of a rank.
COUNT = 2

#: Data begins here; before it stands what the slot holds.
HEADER_BYTES = 4096

#: Mapped at once for the note: so much, and a part of the data, as each band of half a megabyte or more has an entry of
#: some 200 bytes. A longer one has the whole slot mapped again.
_NOTE_BYTES = 1 << 20
_NOTE_PART = 1024

#: Whether what follows is whole; where its note begins; the note's length; generation and step, as the note says; and
#: when it was finished, by a clock of this machine.
_HEADER = struct.Struct("<QQQQQQ")

#: Where in the header a rank says how large the file will have to be.
_WANTED = struct.Struct("<Q")
_WANTED_AT = 64

_ZEROS = bytes(1 << 20)
_NOTHING = Index((), ())

#: How long a rank waits for its agent to provide memory; then it is the first save that maps it.
_PROVIDED_SECONDS, _POLL_SECONDS = 600.0, 0.02

ENVIRONMENT = "AIRFLOW_ELASTIC_SLOTS"

#: How many bytes of memory an agent has already for a neighbour's states; not there where it keeps nobody's.
KEEPS = "AIRFLOW_ELASTIC_KEEPS"

#: Why a state was saved that goes no further than into a slot, unless something happens.
MEMORY = "memory"

#: And of one that goes no further than to the disk of the worker's machine.
DISK = "disk"

#: Those of states that are written to storage where something happens, and not before.
IN_BETWEEN = (MEMORY, DISK)


@dataclass(frozen=True, slots=True)
class Note:
    """What a slot holds: the state of one rank after one step.

    Attributes:
        step: optimizer steps done.
        generation: of the ranks that copied it.
        rank: the rank.
        world_size: all ranks.
        epoch, offset, samples: the position in the data.
        reason: why it was saved.
        metrics: numbers that the script gave.
        kept_bytes: how many bytes of the data are this rank's to write; the rest is in memory only.
        kept: what lies in them.
        rest: what lies behind them.
        perhaps: what lies behind that: the rank's own of what the first one's counts of.
        account: what the rank has consumed, where the run accounts for that.
        phases: the run's trainings so far; the last one is that of this state.
        notes: values of the script's own.
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
    """Strings of other types, as torch's version and names that a script has made, are strings."""
    if isinstance(value, str):
        return str(value)
    raise NotImplementedError(f"a note has no {type(value).__name__}")


_encoded = msgspec.json.Encoder(enc_hook=_plain).encode
_decoded = msgspec.json.Decoder(Note).decode


class StagingSlot:
    """One slot, opened by the agent that made it, or by a rank.

    Args:
        descriptor: of the file; belongs to the slot from now on.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor).atexit = False  # threads may use it to the very end
        if os.fstat(descriptor).st_size < HEADER_BYTES:
            os.ftruncate(descriptor, HEADER_BYTES)
        self._map: mmap.mmap | None = None
        self._mapping = threading.Lock()  # who comes second takes what the first has mapped

    @classmethod
    def open(cls, path: str) -> StagingSlot:
        """The slot behind a path below /proc. Raises OSError where its agent is gone."""
        return cls(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def fileno(self) -> int:
        """Its file; data begins at `HEADER_BYTES`."""
        return self._descriptor

    def hold(self, *, reading: bool = False) -> bool:
        """Take the lock, where nobody else has it; for `reading`, where nobody writes."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if reading else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let go of the lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def want(self, data_bytes: int) -> None:
        """Say how much data there will be, so that the agent can provide the memory for it while training goes on."""
        # Not through the mapping, which would be one of all that an agent has provided for ranks before this one.
        os.pwrite(self._descriptor, _WANTED.pack(_file_bytes(data_bytes)), _WANTED_AT)

    def provide(self) -> None:
        """Provide what was said to be wanted, unless somebody holds the slot.

        Memory that nobody has used yet costs many times what it takes to copy something into it.

        Raises:
            OSError: there is not so much memory.
        """
        (wanted,) = _WANTED.unpack(os.pread(self._descriptor, _WANTED.size, _WANTED_AT))
        if wanted <= os.fstat(self._descriptor).st_size or not self.hold():
            return
        try:
            have = os.fstat(self._descriptor).st_size  # only now: a rank may have used it meanwhile
            self._grow(wanted)
            for at in range(have, wanted, len(_ZEROS)):  # given is not had: pages come with their first byte
                os.pwrite(self._descriptor, _ZEROS[: wanted - at], at)
        finally:
            self.release()

    def map_ahead(self, data_bytes: int) -> None:
        """Wait until the agent has provided what was said to be wanted, and map that while other threads go on.

        Raises:
            OSError: it cannot be mapped.
        """
        size, until = _file_bytes(data_bytes), time.monotonic() + _PROVIDED_SECONDS
        # A lock is that of whoever has opened the file, and this thread is not who saves.
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

    def room(self, data_bytes: int) -> memoryview:
        """Memory for so many bytes of data; what the slot held is gone. Its pages are there before anything is copied.

        Raises:
            OSError: there is not so much memory.
        """
        mapped = self._mapped(_file_bytes(data_bytes))
        _HEADER.pack_into(mapped, 0, 0, 0, 0, 0, 0, 0)
        return memoryview(mapped)[HEADER_BYTES : HEADER_BYTES + data_bytes]

    def finish(self, data_bytes: int, note: Note) -> None:
        """The data is whole: from now on the slot holds it."""
        text = _encoded(note)  # training waits for it
        at = HEADER_BYTES + data_bytes
        mapped = self._mapped(at + len(text))
        mapped[at : at + len(text)] = text
        for whole in (0, 1):
            _HEADER.pack_into(
                mapped, 0, whole, at, len(text), note.generation, note.step, time.monotonic_ns()
            )

    def note(self) -> Note | None:
        """What the slot holds; None where it holds nothing whole."""
        whole, at, size, *_ = self._header()
        # Read, and not mapped: ranks look into the slots of others, too.
        return _decoded(os.pread(self._descriptor, size, at)) if whole else None

    @property
    def age(self) -> tuple[int, int] | None:
        """Generation and step of what it holds, without reading all of the note; None where it holds nothing whole."""
        whole, _, _, generation, step, _ = self._header()
        return (generation, step) if whole else None

    @property
    def finished_at(self) -> int:
        """When what it holds was finished: a step may have been saved twice. Nanoseconds of a clock of this machine."""
        return self._header()[-1]

    def _header(self) -> tuple[int, ...]:
        return _HEADER.unpack(os.pread(self._descriptor, _HEADER.size, 0))

    def data(self, data_bytes: int) -> memoryview:
        """The first so many bytes of what it holds."""
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
        if free is not None and missing > free:  # the kernel would give it, and kill somebody for it
            raise OSError(errno.ENOMEM, f"only {free / 1e9:.3g} GB are free")
        os.posix_fallocate(self._descriptor, 0, size)


def _file_bytes(data_bytes: int) -> int:
    return HEADER_BYTES + data_bytes + _NOTE_BYTES + data_bytes // _NOTE_PART


def common(slots: Sequence[Sequence[StagingSlot]]) -> list[tuple[int, int]]:
    """Generation and step of the states that all ranks have staged, the older one first.

    Args:
        slots: those of each rank of a worker.
    """
    return sorted(set.intersection(*({slot.age for slot in mine if slot.age} for mine in slots)))


def held(slots: Sequence[Sequence[StagingSlot]], age: tuple[int, int]) -> list[tuple[StagingSlot, Note]]:
    """For each rank the slot with this state, held for reading; empty where one of them has it no more."""
    found: list[tuple[StagingSlot, Note]] = []
    with contextlib.ExitStack() as let_go:
        for mine in slots:
            slot = max((one for one in mine if one.age == age), key=lambda one: one.finished_at, default=None)
            if slot is None or not slot.hold(reading=True):
                return []
            let_go.callback(slot.release)
            note = slot.note()
            if note is None or slot.age != age:  # copied into meanwhile
                return []
            found.append((slot, note))
        let_go.pop_all()
    return found


def bytes_of(held: Sequence[tuple[StagingSlot, Note]]) -> int:
    """How much of it is kept."""
    return sum(note.kept_bytes for _, note in held)


class StagingSlots:
    """An agent's slots, for all its ranks; and a pipe through which a rank says that it has filled one."""

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
        """What lets a rank find them."""
        folder = f"/proc/{os.getpid()}/fd"
        paths: dict[str, Any] = {
            "poke": f"{folder}/{self._poke}",
            "slots": [[f"{folder}/{descriptor}" for descriptor in mine] for mine in self._descriptors],
        }
        return {ENVIRONMENT: json.dumps(paths)}

    def opened_again(self) -> list[list[StagingSlot]]:
        """The same, for another thread of the agent: a lock is that of whoever has opened the file."""
        return [
            [StagingSlot.open(f"/proc/self/fd/{descriptor}") for descriptor in mine]
            for mine in self._descriptors
        ]

    def poke(self) -> None:
        """Wake whoever waits for news."""
        with contextlib.suppress(BlockingIOError):  # there is news enough
            os.write(self._poke, b".")


#: Where entries of a checkpoint are in shared memory, by their key and offsets: the file, and their first byte.
Memory = dict[tuple[str, tuple[int, ...]], tuple[StagingSlot, int]]
