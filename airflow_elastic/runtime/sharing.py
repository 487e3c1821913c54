"""Giving what this worker's ranks have staged to its neighbour in the ring, while they train on."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters import checksums, page
from airflow_elastic.runtime import slots
from airflow_elastic.runtime.persister import NICE
from airflow_elastic.runtime.ring import Answer, Given, Hello, hear, keep_alive, say
from airflow_elastic.spec.index import Index

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.runtime.node import Node
    from airflow_elastic.runtime.ring import Neighbour
    from airflow_elastic.runtime.slots import Note, Slot

log = logging.getLogger(__name__)

#: A neighbour that takes nothing for so long is not waited for: a slot that is being read is one less to save into.
_SEND_SECONDS = 10.0

_CHUNK_BYTES = 4 << 20

#: Ranks' news are heard by the thread that writes to storage, which does not listen meanwhile.
_LOOK_SECONDS = 0.5


class Sharer:
    """A thread of the agent that gives the newest state to the neighbour.

    Args:
        node: the worker.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._slots = node, node.slots.opened_again()
        self._tried: tuple[int, int, str] = (0, -1, "")  # generation, step, and why it was saved
        self._connections = 0
        self._connection: socket.socket | None = None
        self._to: Neighbour | None = None
        self._refused = False  # and told
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="sharing", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def news(self) -> None:
        """Ranks have staged something."""
        self._news.set()

    def stop(self, *, goodbye: bool) -> None:
        """End; after a goodbye, the neighbour does not take this worker for lost."""
        self._over.set()
        self._news.set()
        self._thread.join(timeout=2 * _SEND_SECONDS)
        if goodbye and not self._thread.is_alive():
            self._part()

    def _work(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._over.is_set():
            heard = self._news.wait(_LOOK_SECONDS)
            self._news.clear()
            try:
                self._share(heard=heard)
            except OSError as error:
                log.warning("the neighbour could not be given what is saved: %s", error)
                self._disconnect()
            except Exception:
                log.exception("the neighbour could not be given what is saved")
                self._disconnect()

    def _share(self, *, heard: bool) -> None:
        """Give the newest state that all ranks have staged, unless that was tried already. Raises OSError.

        Whether a step was saved once more stands in notes, which take their time to read: only when there is news.
        """
        neighbour = self._node.neighbour
        if self._to is not None and self._to != neighbour:
            self._part()
        for age in reversed(slots.common(self._slots)):
            if age < self._tried[:2] or age[0] != self._node.generation or self._over.is_set():
                return
            if age == self._tried[:2] and not heard:
                return
            held = slots.held(self._slots, age)
            try:
                if not held:  # the ranks have gone over to the next one
                    continue
                this = (*age, held[0][1].reason)
                if this != self._tried:  # a step can be saved once more
                    self._try(neighbour, held, this)
                return
            finally:
                for slot, _ in held:
                    slot.release()

    def _try(
        self, neighbour: Neighbour | None, held: Sequence[tuple[Slot, Note]], this: tuple[int, int, str]
    ) -> None:
        self._tried = this
        try:
            if neighbour is not None:
                self._give(neighbour, held)
        finally:  # also where it was not taken: the next state is to be tried
            if this[0] == self._node.generation:
                self._node.tell_ranks({page.GIVEN: float(this[1])})

    def _give(self, neighbour: Neighbour, held: Sequence[tuple[Slot, Note]]) -> None:
        connection = self._connection or self._connect(neighbour)
        data = [slot.data(note.kept_bytes) for slot, note in held]
        notes = tuple(replace(note, rest=Index((), ())) for _, note in held)
        say(connection, Given(notes, tuple(checksums.of(each) for each in data)))
        if self._is_taken(connection, notes[0].step):
            for each in data:
                for at in range(0, len(each), _CHUNK_BYTES):
                    if self._over.is_set():
                        raise OSError("this worker ends")
                    connection.sendall(each[at : at + _CHUNK_BYTES])
            if self._is_taken(connection, notes[0].step):
                self._refused = False

    def _is_taken(self, connection: socket.socket, step: int) -> bool:
        trouble = hear(connection, Answer).trouble
        if trouble is None or self._refused:
            return trouble is None
        self._refused = True
        reason = f"its neighbour does not keep it: {trouble}"
        log.warning("step %d: %s", step, reason)
        self._node.tell_unsaved(step, reason)
        return False

    def _connect(self, neighbour: Neighbour) -> socket.socket:
        place = neighbour.place
        self._connection = socket.create_connection((place.addr, place.port), timeout=_SEND_SECONDS)
        self._to = neighbour
        keep_alive(self._connection)
        self._connections += 1
        say(self._connection, Hello(place.token, neighbour.generation, self._node.index, self._connections))
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
