"""A ring of workers: each keeps in its memory what the one before it would write to storage, were it still there.

Which worker keeps whose follows from the generation's members; where it listens, and a word by which it knows its
neighbour, stand in the store of their meeting, as do the addresses of everything else in a training job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_elastic.runtime.tiers.shared_memory import Note
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.records.job_files import Members

log = logging.getLogger(__name__)

T = TypeVar("T")

_LENGTH = struct.Struct("<Q")

_LONGEST = 256 << 20  # an index of a million tensors


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens, and the word that whoever gives it something has to say."""

    addr: str
    port: int
    token: str


class Listener:
    """A free port of this worker's, where a thread of its own hears each who connects.

    Args:
        address: of this worker.
        name: of the thread.
        hear: is given each connection.

    Attributes:
        place: where it is, and the word that whoever connects has to say.
    """

    def __init__(self, address: str, name: str, hear: Callable[[socket.socket], None]) -> None:
        self._hear, self._name, self._closed = hear, name, False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.place = Address(address, self._socket.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._listen, name=name, daemon=True).start()

    def knows(self, token: str) -> bool:
        """Whether that is the word."""
        return secrets.compare_digest(token.encode(), self.place.token.encode())

    def close(self) -> None:
        """End."""
        self._closed = True
        with contextlib.suppress(OSError):  # nobody is connected
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning(
                    "%s: nobody can connect just now: %s", self._name, error
                )  # too many files are open
                time.sleep(1.0)
                continue
            threading.Thread(
                target=self._hear, args=(connection,), name=f"{self._name}'s", daemon=True
            ).start()


@dataclass(frozen=True, slots=True)
class Buddy:
    """Who keeps a worker's state in a generation."""

    generation: int
    worker: int
    place: Address


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word: what worker of what generation gives its states, and over its how manieth connection."""

    token: str
    generation: int
    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class StateHeader:
    """A state: notes and checksums of what follows, for each rank of the worker. Without any: the last word."""

    notes: tuple[Note, ...] = ()
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether it is taken, before its bytes are sent and after; and why not."""

    trouble: str | None = None


def buddy_of(worker: int, members: Members, node_unit: int, machines: Sequence[str]) -> int | None:
    """Who keeps a worker's state: each keeps that of one other, of another node unit. None where all are of one.

    As many places further as it takes to come to another machine, for as many of them as can be. Where that makes no
    difference, the one at the same place in the next node unit.

    Args:
        worker: its number.
        members: of the generation.
        node_unit: workers of a unit; their places follow each other.
        machines: where each of the members is, in their order.
    """
    nodes = members.nodes
    count, places = len(nodes), range(len(nodes))

    def apart(shift: int) -> bool:
        return all(at // node_unit != (at + shift) % count // node_unit for at in places)

    def shared(shift: int) -> int:
        return sum(machines[at] == machines[(at + shift) % count] for at in places)

    shifts = [node_unit, *range(1, count)] if count > node_unit else []
    best = min(filter(apart, shifts), key=shared, default=None)
    return None if best is None else nodes[(nodes.index(worker) + best) % count]


def why_no_buddy(members: Members, node_unit: int) -> str:
    """Why that is so where all members are of one node unit, and what to do."""
    count, units = len(members.nodes), ""
    if node_unit > 1:
        units = ", or set workers.node_unit to how many are on each machine"
    return (
        f"nobody keeps the state of another worker in memory, as checkpoint.buddies asks for: only {count} "
        f"worker{'s train' if count > 1 else ' trains'}, and workers.node_unit is {node_unit}; of one unit none keeps "
        "another's. When they are lost, training goes on from storage. For that not to be, have "
        f"workers.min {2 * node_unit} or more{units}"
    )


def announce(store: TCPStore, worker: int, place: Address, machine: str) -> None:
    """Say where a worker listens, and on which machine it is; before it says that it has come."""
    store.set(f"keeper/{worker}", json.dumps(encode(place)))
    store.set(f"machine/{worker}", machine)


def find_buddy(store: TCPStore, worker: int, members: Members, node_unit: int) -> Buddy | None:
    """Who keeps this worker's state, when all have come; None, and said, where nobody does."""
    machines = [name.decode() for name in store.multi_get([f"machine/{index}" for index in members.nodes])]
    other = buddy_of(worker, members, node_unit, machines)
    if other is None:
        log.warning("%s", why_no_buddy(members, node_unit))
        return None
    here, there = (machines[members.nodes.index(one)] for one in (worker, other))
    if here == there and len(set(machines)) > 1:
        log.warning(
            "node-%d keeps the state of node-%d, and both are on %s: were that lost, both would be. Have workers "
            "spread evenly over machines, or set workers.node_unit to how many are on each",
            *(other, worker, here),
        )
    place = decode(Address, json.loads(store.get(f"keeper/{other}")))
    return Buddy(members.generation, other, place)


def send_document(connection: socket.socket, document: Any) -> None:
    """Send a document."""
    data = json.dumps(encode(document)).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_document(connection: socket.socket, kind: type[T], *, longest: int = _LONGEST) -> T:
    """Receive a document, of so many bytes at most.

    Raises:
        OSError: the connection has ended, or what came is no such document.
    """
    head = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(head))
    (length,) = _LENGTH.unpack(head)
    if length > longest:
        raise OSError(f"a document of {length} bytes was announced: this is no worker of ours")
    data = bytearray(length)
    receive_into(connection, memoryview(data))
    try:
        return decode(kind, json.loads(data))
    except (ValueError, SpecError) as error:
        raise OSError(f"what came is no {kind.__name__}: {error}") from error


def receive_into(connection: socket.socket, room: memoryview) -> None:
    """Receive as many bytes as there is room for. Raises OSError where the connection ends before."""
    while len(room):
        count = connection.recv_into(room)
        if not count:
            raise OSError("the connection has ended")
        room = room[count:]


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel find out within half a minute that the other machine is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
