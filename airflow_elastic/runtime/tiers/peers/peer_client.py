"""Reads files of a checkpoint from the memory of other workers' agents. Runs in a rank; `peer_server` answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.store import ignore_progress
from airflow_elastic.runtime.tiers.peers.connection import (
    Address,
    Answer,
    keep_alive,
    receive_document,
    send_document,
)
from airflow_elastic.spec.codec import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENVIRONMENT = "AIRFLOW_ELASTIC_LOANS"

#: How long to wait for a worker. After that, its files come from elsewhere.
_PATIENCE_SECONDS = 10.0

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PeerFile:
    """A file in another worker's memory: the worker's address, and the size in bytes."""

    place: Address
    size: int


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The one message of a reader: it asks for a range of bytes of a file."""

    token: str
    key: str
    start: int
    size: int


def find_peer_files() -> Mapping[str, PeerFile]:
    """The files in other workers' memory, by key. Empty if this worker's agent provides no list."""
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        return {}
    return {key: decode(PeerFile, loan) for key, loan in json.loads(Path(path).read_bytes()).items()}


class NotServed(OSError):
    """A worker answers that it does not have what was asked for."""


@contextlib.contextmanager
def open_peer_range(loan: PeerFile, key: str, start: int, size: int) -> Iterator[PeerReader]:
    """Open a range of a file in another worker's memory. Raises OSError if that fails, now or during a read."""
    place = loan.place
    with socket.create_connection((place.addr, place.port), timeout=_PATIENCE_SECONDS) as connection:
        keep_alive(connection)
        send_document(connection, RangeRequest(place.token, key, start, size))
        trouble = receive_document(connection, Answer).trouble
        if trouble is not None:
            raise NotServed(trouble)
        yield PeerReader(connection, size)


class PeerReader:
    """Reads what a worker sends."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self._connection, self._left = connection, size

    def readinto(self, room: memoryview) -> int:
        """As a file's `readinto`. Returns 0 at the end of the range, or if the worker sends no more."""
        count = self._connection.recv_into(room[: self._left]) if self._left else 0
        self._left -= count
        return count


def save(loan: PeerFile, key: str, path: Path, told: Callable[[int], None] = ignore_progress) -> None:
    """Copy a file from another worker's memory to this machine's disk. Raises OSError if it does not come whole.

    `told` is called with the number of bytes received so far.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    room, left = memoryview(bytearray(_CHUNK_BYTES)), loan.size
    with open_peer_range(loan, key, 0, loan.size) as reader, path.open("wb") as file:
        while left:
            count = reader.readinto(room)
            if not count:
                raise OSError(f"{key} was not sent to its end")
            file.write(room[:count])
            left -= count
            told(loan.size - left)
