"""Keeping what the worker before this one in the ring has staged, for when that one is lost."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.memory import free_bytes
from airflow_elastic.runtime.ring import Address, Answer, Given, Hello, fill, hear, keep_alive, say
from airflow_elastic.runtime.slots import COUNT, Slots

log = logging.getLogger(__name__)

#: How long whoever connects may take to say who it is.
_HELLO_SECONDS = 10.0


class Keeper:
    """Keeps the two newest states of another worker, so that one of them is always whole.

    Args:
        address: where to listen, on a free port.
        procs: ranks of each worker.

    Attributes:
        place: where it listens.
        slots: what is kept, for each rank.
        generation: of whoever's it is.
    """

    def __init__(self, address: str, procs: int) -> None:
        both = Slots(procs)
        self.slots, self._mine = both.of, both.opened_again()
        self.generation = 0
        self._worker: int | None = None
        self._speaker: socket.socket | None = None  # whoever gives, as long as it does
        self._lost = False
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.place = Address(address, self._listener.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._listen, name="keeper", daemon=True).start()

    @property
    def lost(self) -> int | None:
        """The worker whose state this is, where that has gone without a word."""
        with self._lock:
            return self._worker if self._lost else None

    def close(self) -> None:
        """End."""
        with contextlib.suppress(OSError):  # nobody is connected
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._hear, args=(connection,), name="kept", daemon=True).start()

    def _hear(self, connection: socket.socket) -> None:
        with connection:
            hello = self._greeted(connection)
            if hello is None or not self._begins(hello, connection):
                return
            lost = True
            try:
                while (given := hear(connection, Given)).notes:
                    self._take(connection, given)
                lost = False
            except OSError as error:
                log.info("node-%d has gone without a word: %s", hello.worker, error)
            with self._lock:
                if self._speaker is connection:
                    self._speaker, self._lost = None, lost

    def _greeted(self, connection: socket.socket) -> Hello | None:
        try:
            connection.settimeout(_HELLO_SECONDS)
            hello = hear(connection, Hello)
            connection.settimeout(None)
            keep_alive(connection)
        except OSError as error:
            log.warning("somebody has connected, and has not said who it is: %s", error)
            return None
        if not secrets.compare_digest(hello.token, self.place.token):
            log.warning("somebody has connected who is no worker of this job, and is not listened to")
            return None
        return hello

    def _begins(self, hello: Hello, connection: socket.socket) -> bool:
        """Whether this one's states are what is to be kept from now on."""
        with self._lock:
            if hello.generation < self.generation:
                return False
            self.generation, self._worker = hello.generation, hello.worker
            self._speaker, self._lost = connection, False
            return True

    def _take(self, connection: socket.socket, given: Given) -> None:
        """Take a state into the older place of each rank. Raises OSError where the connection ends."""
        chosen = [min(mine, key=lambda slot: slot.age or (-1, -1)) for mine in self._mine]
        with contextlib.ExitStack() as let_go:
            for slot in chosen:
                if not slot.hold():
                    say(connection, Answer("what is kept is just being written"))
                    return
                let_go.callback(slot.release)
            try:
                self._check_memory(given)
                rooms = [slot.room(note.kept_bytes) for slot, note in zip(chosen, given.notes, strict=True)]
            except (MemoryError, ValueError, _TooLarge) as error:
                say(connection, Answer(str(error)))
                return
            say(connection, Answer())
            for room in rooms:
                fill(connection, room)
            if [checksums.of(room) for room in rooms] != list(given.checksums):
                say(connection, Answer("it has changed on its way"))
                return
            for slot, note in zip(chosen, given.notes, strict=True):
                slot.finish(note.kept_bytes, note)
        say(connection, Answer())

    def _check_memory(self, given: Given) -> None:
        """Raises _TooLarge where there is not enough memory for all places; before any of it is used."""
        have = sum(os.fstat(slot.fileno()).st_size for mine in self._mine for slot in mine)
        wanted = COUNT * sum(note.kept_bytes for note in given.notes)
        free = free_bytes()
        if free is not None and wanted - have > free:
            raise _TooLarge(
                f"keeping it takes {COUNT} times {wanted / COUNT / 1e9:.3g} GB, and only {free / 1e9:.3g} GB are free: "
                "give workers more memory, or turn checkpoint.buddies off"
            )


class _TooLarge(Exception):
    """There is not enough memory to keep a state."""
