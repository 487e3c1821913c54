"""Sends what this worker's ranks have staged to its neighbour in the ring, while they train on."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checksums
from airflow_elastic.runtime.tiers.follower import Follower
from airflow_elastic.runtime.tiers.peers.connection import (
    Answer,
    Hello,
    StateHeader,
    keep_alive,
    receive_document,
    send_document,
    why_no_buddy,
)
from airflow_elastic.runtime.tiers.shared_memory import MEMORY
from airflow_elastic.spec.checkpoints.index import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_elastic.runtime.tiers.peers.connection import Buddy
    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot
    from airflow_elastic.runtime.tiers.worker import TierWorker

log = logging.getLogger(__name__)

#: How long to wait for the neighbour's answer. Ranks cannot save into the slot that is being read meanwhile.
_SEND_SECONDS = 10.0

#: Wait longer for a large state: a busy machine takes some seconds to allocate each GB.
_BYTES_A_SECOND = 0.1e9

#: How long a worker that ends tries to say goodbye: its neighbour may be gone, too.
_GOODBYE_SECONDS = 2.0

_CHUNK_BYTES = 4 << 20
_LOOK_SECONDS = 0.2

#: The shortest and the longest pause between two attempts to connect again.
_MEND_SECONDS = (0.5, 10.0)


class BuddySender(Follower):
    """A thread of the agent that sends the newest state to the neighbour.

    Args:
        node: the worker.
    """

    def __init__(self, node: TierWorker) -> None:
        super().__init__(node, "sharing", 2 * _SEND_SECONDS)
        self._connections = 0
        self._reported_alone = 0  # the generation for which it reported that there is no neighbour
        self._connection: socket.socket | None = None
        self._to: Buddy | None = None
        self._mend_at, self._pause = 0.0, 0.0

    def finish(self, flushed: Callable[[], bool], *, done: bool) -> None:
        """End the thread. If storage has every staged state, say goodbye: then this worker does not count as lost."""
        whole = flushed()
        if self.stop() and whole:
            neighbour = self._node.neighbour
            if self._connection is None and self._connections and neighbour is not None:
                with contextlib.suppress(OSError):  # the connection broke in the middle of a state
                    self._connect(neighbour, _GOODBYE_SECONDS)
            self._part()

    def _look(self, *, heard: bool) -> None:
        if self._to is not None and self._to != self._node.neighbour:
            self._part()
        try:
            self._mend()
            super()._look(heard=heard)
        except OSError as error:
            log.warning("the saved state could not be sent to the neighbour: %s", error)
            self._disconnect()
            if self._connections:
                self._to = self._node.neighbour  # connect to it again later
        except BaseException:
            self._disconnect()
            raise

    def _mend(self) -> None:
        """Connect again if the connection broke: otherwise the neighbour takes this worker for lost."""
        connection, neighbour = self._connection, self._to
        if neighbour is None or time.monotonic() < self._mend_at:
            return
        if connection is not None and not _is_heard(connection, 0.0):
            return
        # Ever less often: the neighbour may refuse this worker's connections now.
        shortest, longest = _MEND_SECONDS
        self._pause = min(max(2 * self._pause, shortest), longest)
        self._disconnect()
        try:
            self._connect(neighbour)
        except OSError as error:
            self._to = neighbour  # try again later
            log.info("the neighbour does not answer any more: %s", error)
        self._mend_at = time.monotonic() + self._pause

    def _take(self, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        neighbour, note = self._node.neighbour, held[0][1]
        try:
            if neighbour is not None:
                self._insist(neighbour, held)
            elif note.reason == MEMORY:  # saves for other reasons also go to storage, or to a disk
                self._tell_alone(note)
        finally:  # also after a failure: ranks wait for this before they try the next save
            if note.generation == self._node.generation:
                self._node.tell_ranks({shared_page.GIVEN: float(note.step)})

    def _insist(self, neighbour: Buddy, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        """Send the state. If the connection breaks, send it again over a new one; not if the neighbour is silent."""
        self._mend_at = self._pause = 0.0
        step = held[0][1].step
        for again in (False, True):
            try:
                self._give(neighbour, held)
            except OSError as error:
                if self._over.is_set():
                    raise
                self._disconnect()
                self._connect(neighbour)  # raises if the neighbour is gone
                if isinstance(error, _Ended):
                    log.info("step %d is not sent to the neighbour: %s", step, error)
                    return
                if again or isinstance(error, TimeoutError):
                    self._refuse(step, f"it could not be sent to the neighbour: {error}")
                    return
                log.info("step %d is sent to the neighbour once more: %s", step, error)
            else:
                return

    def _tell_alone(self, note: Note) -> None:
        """Report that no worker keeps the state. Only the lead does so, once a generation; each agent has logged it."""
        node, members = self._node, self._node.members
        if note.generation > self._reported_alone and members is not None and node.index == members.nodes[0]:
            self._reported_alone = note.generation
            node.tell_unsaved(note.step, why_no_buddy(members, node.record.spec.workers.node_unit))

    def _give(self, neighbour: Buddy, held: Sequence[tuple[StagingSlot, Note]]) -> None:
        connection = self._connection or self._connect(neighbour)
        data = [slot.data(note.kept_bytes) for slot, note in held]
        patience = _SEND_SECONDS + sum(map(len, data)) / _BYTES_A_SECOND
        notes = tuple(replace(note, rest=Index((), ()), perhaps=Index((), ())) for _, note in held)
        send_document(connection, StateHeader(notes, tuple(checksums.of(each) for each in data)))
        if self._is_taken(connection, notes[0].step, patience):
            for each in data:
                for at in range(0, len(each), _CHUNK_BYTES):
                    self._check_wanted()
                    connection.sendall(each[at : at + _CHUNK_BYTES])
            if self._is_taken(connection, notes[0].step, patience):
                self._refused = False

    def _is_taken(self, connection: socket.socket, step: int, patience: float) -> bool:
        end = time.monotonic() + patience
        while not _is_heard(connection, _LOOK_SECONDS):
            self._check_wanted()
            if time.monotonic() > end:
                raise TimeoutError(f"nothing was heard from it for {patience:.0f} s")
        trouble = receive_document(connection, Answer).trouble
        if trouble is not None:
            self._refuse(step, f"the neighbour does not keep it: {trouble}")
        return trouble is None

    def _check_wanted(self) -> None:
        """Raises OSError if this worker ends, or its ranks end and must save into the slot that is being sent."""
        pages = (shared_page.read_words(path) for path in self._node.pages())
        if self._over.is_set() or any(one[shared_page.WAITING] == shared_page.ENDING for one in pages if one):
            raise _Ended("the ranks must end, and save into the slot that it is in")

    def _connect(self, neighbour: Buddy, seconds: float = _SEND_SECONDS) -> socket.socket:
        place = neighbour.place
        self._connection = socket.create_connection((place.addr, place.port), timeout=seconds)
        self._to = neighbour
        keep_alive(self._connection)
        self._connections += 1
        send_document(
            self._connection, Hello(place.token, neighbour.generation, self._node.index, self._connections)
        )
        return self._connection

    def _part(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                send_document(self._connection, StateHeader())
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._to = None, None


class _Ended(OSError):
    """There is no time to give a state to the neighbour."""


def _is_heard(connection: socket.socket, seconds: float) -> bool:
    """Whether there is something to read within that time. If no answer is due, that is the end of the connection."""
    seen = select.poll()
    seen.register(connection, select.POLLIN)
    return bool(seen.poll(1000 * seconds))
