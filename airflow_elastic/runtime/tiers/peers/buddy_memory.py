"""Keeping what the worker before this one in the ring has staged, for when that one is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Collection

from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.records import checksums
from airflow_elastic.runtime.tiers.peers.connection import (
    Answer,
    Hello,
    Listener,
    StateHeader,
    keep_alive,
    receive_document,
    receive_into,
    send_document,
)
from airflow_elastic.runtime.tiers.shared_memory import COUNT, StagingSlot, StagingSlots, common

log = logging.getLogger(__name__)

#: How long whoever connects may take to say who it is.
_HELLO_SECONDS = 10.0
_HELLO_BYTES = 4096

#: Who has broken off connects anew within this time, if there still is somebody.
_SURE_SECONDS = 2.0


class BuddyMemory:
    """Keeps the two newest states of another worker, so that one of them is always whole.

    Args:
        address: where to listen, on a free port.
        procs: ranks of each worker.

    Attributes:
        place: where it listens.
        slots: what is kept, for each rank.
    """

    def __init__(self, address: str, procs: int) -> None:
        both = StagingSlots(procs)
        self.slots, self._mine = both.of, both.opened_again()
        self._checksums: dict[tuple[int, int], tuple[str, ...]] = {}
        self._hello = Hello("", 0, -1, 0)
        self._speaker: socket.socket | None = None  # whoever gives, as long as it does
        self._lost = self._parted = False
        self._lost_at = 0.0
        self._since = 0  # the generation that has met last: what others before it say is of no more use
        self._lock = threading.Lock()  # of all above
        self._taking = threading.Lock()  # one state at a time, of one connection
        self._listener = Listener(address, "keeper", self._hear)
        self.place = self._listener.place

    @property
    def lost(self) -> int | None:
        """The worker whose state this is, where that has gone without a word."""
        with self._lock:
            return self._hello.worker if self._lost else None

    @property
    def is_surely_lost(self) -> bool:
        """Whether it has not come back for a while either: a connection may break, and is made anew."""
        with self._lock:
            return self._lost and time.monotonic() - self._lost_at > _SURE_SECONDS

    def without(self, others: Collection[int]) -> None:
        """Whoever is none of these is lost, unless it has said its last word: a silent machine shows it late."""
        with self._lock:
            known = self._hello.generation >= max(1, self._since) and not self._parted
            self._lost = self._lost or (known and self._hello.worker not in others)

    def settle(self, generation: int) -> None:
        """All workers of a generation have come: who was lost before has been seen to, and is heard no more."""
        with self._lock:
            self._since, lost = generation, self._speaker if self._lost else None
            if self._hello.generation < generation:
                self._speaker, self._lost = None, False
        if lost is not None:  # it may have fallen silent in the middle of a state
            with contextlib.suppress(OSError):
                lost.shutdown(socket.SHUT_RDWR)

    @property
    def generation(self) -> int:
        """That of the worker whose state this is; 0 before the first."""
        return self._hello.generation

    def checksums(self, age: tuple[int, int]) -> tuple[str, ...]:
        """Those of what each rank's data was where it came from."""
        return self._checksums.get(age, ())

    def close(self) -> None:
        """End."""
        self._listener.close()

    def _hear(self, connection: socket.socket) -> None:
        with connection:
            hello = self._greeted(connection)
            if hello is None or not self._begins(hello, connection):
                return
            lost = True
            try:
                while (given := receive_document(connection, StateHeader)).notes:
                    self._take(connection, given)
                lost = False
            except OSError as error:
                log.info("node-%d has gone without a word: %s", hello.worker, error)
            with self._lock:
                if self._speaker is connection:
                    self._speaker, self._lost, self._parted = None, lost, not lost
                    self._lost_at = time.monotonic()

    def _greeted(self, connection: socket.socket) -> Hello | None:
        try:
            connection.settimeout(_HELLO_SECONDS)
            hello = receive_document(connection, Hello, longest=_HELLO_BYTES)
            connection.settimeout(None)
            keep_alive(connection)
        except OSError as error:
            log.warning("somebody has connected, and has not said who it is: %s", error)
            return None
        if not self._listener.knows(hello.token):
            log.warning("somebody has connected who is no worker of this job, and is not listened to")
            return None
        return hello

    def _begins(self, hello: Hello, connection: socket.socket) -> bool:
        """Whether this one's states are what is to be kept from now on."""
        with self._lock:
            before = (self._hello.generation, self._hello.number)
            if hello.generation < self._since or (hello.generation, hello.number) < before:
                return False  # it has waited in a queue
            if self._speaker is not None:
                with contextlib.suppress(OSError):
                    self._speaker.shutdown(socket.SHUT_RDWR)
            self._hello, self._speaker, self._lost, self._parted = hello, connection, False, False
            return True

    def _take(self, connection: socket.socket, given: StateHeader) -> None:
        """Take a state into a place of each rank. Raises OSError where the connection ends, or another has begun."""
        with self._taking, contextlib.ExitStack() as let_go:
            self._check_speaker(connection)
            age = (given.notes[0].generation, given.notes[0].step)
            chosen = [_place(mine, age) for mine in self._mine]
            for slot in chosen:
                if not slot.hold():
                    send_document(connection, Answer("what is kept is just being written"))
                    return
                let_go.callback(slot.release)
            try:
                self._check_memory(given)
                rooms = [slot.room(note.kept_bytes) for slot, note in zip(chosen, given.notes, strict=True)]
            except (MemoryError, OSError, ValueError) as error:
                send_document(connection, Answer(str(error)))
                return
            send_document(connection, Answer())
            for room in rooms:
                receive_into(connection, room)
            self._check_speaker(connection)  # what was on its way may arrive though its sender has given up
            if tuple(checksums.of(room) for room in rooms) != given.checksums:
                send_document(connection, Answer("it has changed on its way"))
                return
            self._checksums = {
                **{old: self.checksums(old) for old in common(self._mine)},
                age: given.checksums,
            }
            try:
                for slot, note in zip(chosen, given.notes, strict=True):
                    slot.finish(note.kept_bytes, note)
            except OSError as error:
                send_document(connection, Answer(str(error)))
                return
        send_document(connection, Answer())

    def _check_speaker(self, connection: socket.socket) -> None:
        with self._lock:
            if self._speaker is not connection:
                raise OSError("another connection has taken its place")

    @property
    def have_bytes(self) -> int:
        """How much memory it has for them already."""
        return sum(os.fstat(slot.fileno()).st_size for mine in self._mine for slot in mine)

    def _check_memory(self, given: StateHeader) -> None:
        """Raises MemoryError where there is not enough for all places; before any of it is used."""
        have = self.have_bytes
        wanted = COUNT * sum(note.kept_bytes for note in given.notes)
        free = free_bytes()
        if free is not None and wanted - have > free:
            raise MemoryError(
                f"keeping it takes {COUNT} times {wanted / COUNT / 1e9:.3g} GB, and only {free / 1e9:.3g} GB are free: "
                "give workers more memory, or turn checkpoint.buddies off"
            )


def _place(mine: list[StagingSlot], age: tuple[int, int]) -> StagingSlot:
    """That of the same step, so that there is no second one, or the older one."""
    return min(mine, key=lambda slot: (slot.age != age, slot.age or (-1, -1)))
