"""Memory for the staged states of the worker before this one in the ring, in case that worker is lost."""

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

#: How long a new connection may take to send its `Hello`.
_HELLO_SECONDS = 10.0
_HELLO_BYTES = 4096

#: A worker whose connection broke connects again within this time, if it is still alive.
_SURE_SECONDS = 2.0


class BuddyMemory:
    """Keeps the two newest states of another worker, so that one of them is always complete.

    Args:
        address: address to listen on; the port is a free one.
        procs: ranks of each worker.

    Attributes:
        place: where it listens.
        slots: the slots with the states, for each rank.
    """

    def __init__(self, address: str, procs: int) -> None:
        both = StagingSlots(procs)
        self.slots, self._mine = both.of, both.opened_again()
        self._checksums: dict[tuple[int, int], tuple[str, ...]] = {}
        self._hello = Hello("", 0, -1, 0)
        self._speaker: socket.socket | None = None  # the connection of the sender, while it lasts
        self._lost = self._parted = False
        self._lost_at = 0.0
        self._since = 0  # the newest generation that has met; senders of earlier ones are refused
        self._lock = threading.Lock()  # guards all fields above
        self._taking = threading.Lock()  # one state at a time, from one connection
        self._listener = Listener(address, "keeper", self._hear)
        self.place = self._listener.place

    @property
    def lost(self) -> int | None:
        """The worker whose states these are, if its connection ended without a goodbye; else None."""
        with self._lock:
            return self._hello.worker if self._lost else None

    @property
    def is_surely_lost(self) -> bool:
        """Whether it is lost and has not connected again for a while. One broken connection proves nothing."""
        with self._lock:
            return self._lost and time.monotonic() - self._lost_at > _SURE_SECONDS

    def without(self, others: Collection[int]) -> None:
        """Take the sender for lost if it is none of `others`, unless it has said goodbye.

        A machine that fell silent may still look connected.
        """
        with self._lock:
            known = self._hello.generation >= max(1, self._since) and not self._parted
            self._lost = self._lost or (known and self._hello.worker not in others)

    def settle(self, generation: int) -> None:
        """Note that all workers of a generation have met. A worker that was lost before is not listened to any more."""
        with self._lock:
            self._since, lost = generation, self._speaker if self._lost else None
            if self._hello.generation < generation:
                self._speaker, self._lost = None, False
        if lost is not None:  # it may have stopped in the middle of a state
            with contextlib.suppress(OSError):
                lost.shutdown(socket.SHUT_RDWR)

    @property
    def generation(self) -> int:
        """The generation of the worker whose states these are; 0 before the first."""
        return self._hello.generation

    def checksums(self, age: tuple[int, int]) -> tuple[str, ...]:
        """The checksums of each rank's data, as its sender computed them. Empty if the state is not known."""
        return self._checksums.get(age, ())

    def close(self) -> None:
        """Stop listening."""
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
                log.info("node-%d has gone without a goodbye: %s", hello.worker, error)
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
            log.warning("a connection was closed because its sender did not identify itself: %s", error)
            return None
        if not self._listener.knows(hello.token):
            log.warning("a connection was closed because its sender is not a worker of this job")
            return None
        return hello

    def _begins(self, hello: Hello, connection: socket.socket) -> bool:
        """Whether this connection's states are kept from now on. If so, it replaces the one before."""
        with self._lock:
            before = (self._hello.generation, self._hello.number)
            if hello.generation < self._since or (hello.generation, hello.number) < before:
                return False  # an older connection that was accepted late
            if self._speaker is not None:
                with contextlib.suppress(OSError):
                    self._speaker.shutdown(socket.SHUT_RDWR)
            self._hello, self._speaker, self._lost, self._parted = hello, connection, False, False
            return True

    def _take(self, connection: socket.socket, given: StateHeader) -> None:
        """Receive a state into a slot of each rank. Raises OSError if the connection ends, or another replaces it."""
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
            self._check_speaker(connection)  # the last bytes may arrive after the sender has given up
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
        """How many bytes of memory it has allocated for states."""
        return sum(os.fstat(slot.fileno()).st_size for mine in self._mine for slot in mine)

    def _check_memory(self, given: StateHeader) -> None:
        """Raises MemoryError if there is not enough memory for all slots, before any of it is used."""
        have = self.have_bytes
        wanted = COUNT * sum(note.kept_bytes for note in given.notes)
        free = free_bytes()
        if free is not None and wanted - have > free:
            raise MemoryError(
                f"keeping it takes {COUNT} times {wanted / COUNT / 1e9:.3g} GB, and only {free / 1e9:.3g} GB are free: "
                "give workers more memory, or turn checkpoint.buddies off"
            )


def _place(mine: list[StagingSlot], age: tuple[int, int]) -> StagingSlot:
    """The slot to overwrite: the one with the same step, so that there is only one such; else the older one."""
    return min(mine, key=lambda slot: (slot.age != age, slot.age or (-1, -1)))
