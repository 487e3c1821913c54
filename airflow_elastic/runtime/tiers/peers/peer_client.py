"""Reads files of a checkpoint from the memory of other workers' agents, in a rank. `peer_server` is the other side."""

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

#: A worker that says nothing for so long is done without.
_PATIENCE_SECONDS = 10.0

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class PeerFile:
    """A file that a worker lends: where, and its bytes."""

    place: Address
    size: int


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The only word of whoever borrows: these bytes of that file."""

    token: str
    key: str
    start: int
    size: int


def find_peer_files() -> Mapping[str, PeerFile]:
    """What others lend the ranks of this worker, by the files' keys; nothing where its agent does not tell."""
    path = os.environ.get(ENVIRONMENT)
    if path is None:
        return {}
    return {key: decode(PeerFile, loan) for key, loan in json.loads(Path(path).read_bytes()).items()}


class NotServed(OSError):
    """A worker answers that it does not have what was asked for."""


@contextlib.contextmanager
def open_peer_range(loan: PeerFile, key: str, start: int, size: int) -> Iterator[PeerReader]:
    """Bytes of a file that is lent. Raises OSError where they are not had, here or while they are read."""
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
        """As a file's; 0 where all has been read, or the worker sends no more."""
        count = self._connection.recv_into(room[: self._left]) if self._left else 0
        self._left -= count
        return count


def save(loan: PeerFile, key: str, path: Path, told: Callable[[int], None] = ignore_progress) -> None:
    """Write a file that is lent to the disk of this machine; `told` is called with how many bytes have come so far.

    Raises OSError where it is not had, or not whole.
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
