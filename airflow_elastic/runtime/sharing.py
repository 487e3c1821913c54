"""Giving what this worker's ranks have staged to its neighbour in the ring, while they train on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING

from airflow_elastic.adapters import checksums, page
from airflow_elastic.adapters.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.page import Page
from airflow_elastic.runtime import slots
from airflow_elastic.runtime.persister import NICE
from airflow_elastic.runtime.ring import Answer, Given, Hello, hear, keep_alive, say
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.runtime.node import Node
    from airflow_elastic.runtime.ring import Neighbour
    from airflow_elastic.runtime.slots import Note, Slot

log = logging.getLogger(__name__)

#: A neighbour that takes nothing for so long is not waited for: a slot that is being read is one less to save into.
_SEND_SECONDS = 10.0

_CHUNK_BYTES = 4 << 20


class Sharer:
    """A thread of the agent that gives the newest state to the neighbour.

    Args:
        node: the worker.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._slots = node, node.slots.opened_again()
        self._tried: tuple[int, int] = (0, -1)
        self._connection: socket.socket | None = None
        self._to: Neighbour | None = None
        self._refused: str | None = None  # what was told last
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="sharing", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def news(self) -> None:
        """Ranks have staged something."""
        self._news.set()

    def stop(self) -> None:
        """End, and say so: the neighbour does not take this worker for lost."""
        self._over.set()
        self._news.set()
        self._thread.join(timeout=2 * _SEND_SECONDS)
        self._part()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._over.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self._share()
            except OSError as error:
                log.warning("the neighbour could not be given what is saved: %s", error)
                self._disconnect()
            except Exception:
                log.exception("the neighbour could not be given what is saved")
                self._disconnect()

    def _share(self) -> None:
        """Give the newest state that all ranks have staged, unless that was tried already. Raises OSError."""
        neighbour = self._node.neighbour
        if self._to is not None and self._to != neighbour:
            self._part()
        for age in reversed(slots.common(self._slots)):
            if age <= self._tried or age[0] != self._node.generation or self._over.is_set():
                return
            held = slots.held(self._slots, age)
            if not held:  # the ranks have gone over to the next one
                continue
            self._tried = age
            try:
                if neighbour is not None:
                    self._give(neighbour, held)
            finally:
                for slot, _ in held:
                    slot.release()
                self._tell_ranks(age[1])
            return

    def _tell_ranks(self, step: int) -> None:
        """Also where it was not taken: the next state is to be tried."""
        for path in self._node.pages():
            one = Page(path)
            one.words[page.GIVEN] = float(step)
            one.close()

    def _give(self, neighbour: Neighbour, held: Sequence[tuple[Slot, Note]]) -> None:
        connection = self._connection or self._connect(neighbour)
        data = [slot.data(note.kept_bytes) for slot, note in held]
        notes = tuple(note for _, note in held)
        say(connection, Given(notes, tuple(checksums.of(each) for each in data)))
        if self._is_taken(connection, notes[0].step):
            for each in data:
                for at in range(0, len(each), _CHUNK_BYTES):
                    connection.sendall(each[at : at + _CHUNK_BYTES])
            self._is_taken(connection, notes[0].step)

    def _is_taken(self, connection: socket.socket, step: int) -> bool:
        trouble = hear(connection, Answer).trouble
        if trouble is None or trouble == self._refused:
            return trouble is None
        self._refused = trouble
        reason = f"its neighbour does not keep it: {trouble}"
        log.warning("step %d: %s", step, reason)
        try:
            told = CheckpointTrouble(self._node.attempt, step, reason)
            Mailbox(self._node.store).post("unsaved", by=f"node-{self._node.index}", checkpoint=told)
        except ElasticError as error:
            log.warning("that cannot be told either: %s", error)
        return False

    def _connect(self, neighbour: Neighbour) -> socket.socket:
        place = neighbour.place
        self._connection = socket.create_connection((place.addr, place.port), timeout=_SEND_SECONDS)
        self._to = neighbour
        keep_alive(self._connection)
        say(self._connection, Hello(place.token, neighbour.generation, self._node.index))
        return self._connection

    def _part(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                say(self._connection, Given())
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._to = None, None
