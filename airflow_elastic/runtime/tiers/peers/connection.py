"""A ring of workers: each keeps the newest states of the worker before it in memory, and writes them if that is lost.

The members of the generation determine which worker keeps which states. Through the store of their rendezvous, workers
exchange their addresses, and a secret token that each connection must show.
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
    """Where a worker listens, and the token that each connection must show."""

    addr: str
    port: int
    token: str


class Listener:
    """Listens on a free port of this worker. Each connection is served by a thread of its own.

    Args:
        address: address of this worker.
        name: name of the thread.
        hear: serves a connection.

    Attributes:
        place: where it listens, and the token that each connection must show.
    """

    def __init__(self, address: str, name: str, hear: Callable[[socket.socket], None]) -> None:
        self._hear, self._name, self._closed = hear, name, False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.create_server((address, 0), family=family)
        self.place = Address(address, self._socket.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._listen, name=name, daemon=True).start()

    def knows(self, token: str) -> bool:
        """Whether the token is the right one."""
        return secrets.compare_digest(token.encode(), self.place.token.encode())

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):  # a socket that only listens is not connected
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._closed:
                    return
                # For example, too many files are open.
                log.warning("%s: new connections fail just now: %s", self._name, error)
                time.sleep(1.0)
                continue
            threading.Thread(
                target=self._hear, args=(connection,), name=f"{self._name}'s", daemon=True
            ).start()


@dataclass(frozen=True, slots=True)
class Buddy:
    """The worker that keeps another worker's states in a generation."""

    generation: int
    worker: int
    place: Address


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: which worker of a generation sends its states. `number` counts its connections."""

    token: str
    generation: int
    worker: int
    number: int


@dataclass(frozen=True, slots=True)
class StateHeader:
    """Announces a state: notes and checksums of the data that follows, for each rank. Without notes: a goodbye."""

    notes: tuple[Note, ...] = ()
    checksums: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a state, before its data is sent and after. None: it is taken; else the reason why not."""

    trouble: str | None = None


def buddy_of(worker: int, members: Members, node_unit: int, machines: Sequence[str]) -> int | None:
    """The worker that keeps this one's states, from another node unit. None if all workers are of one unit.

    All workers are shifted by the same number of places, so each keeps the states of one other. The shift is the one
    with the fewest pairs on one machine. If several are equal, it is one node unit.

    Args:
        worker: its number.
        members: members of the generation.
        node_unit: workers of a unit; their places follow each other.
        machines: the machine of each member, in their order.
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
    """Why there is none if all members are of one node unit, and what to do."""
    count, units = len(members.nodes), ""
    if node_unit > 1:
        units = ", or set workers.node_unit to the number of workers on each machine"
    return (
        "no worker keeps another one's state in memory, though checkpoint.buddies is on: only "
        f"{count} worker{'s train' if count > 1 else ' trains'}, and workers.node_unit is {node_unit}. Workers of one "
        "unit do not keep each other's states. If they are lost, training goes on from storage. To avoid that, set "
        f"workers.min to {2 * node_unit} or more{units}"
    )


def announce(store: TCPStore, worker: int, place: Address, machine: str) -> None:
    """Publish where a worker listens and which machine it is on. Before it reports that it has come."""
    store.set(f"keeper/{worker}", json.dumps(encode(place)))
    store.set(f"machine/{worker}", machine)


def find_buddy(store: TCPStore, worker: int, members: Members, node_unit: int) -> Buddy | None:
    """The worker that keeps this one's states, once all have come. If there is none, log it and return None."""
    machines = [name.decode() for name in store.multi_get([f"machine/{index}" for index in members.nodes])]
    other = buddy_of(worker, members, node_unit, machines)
    if other is None:
        log.warning("%s", why_no_buddy(members, node_unit))
        return None
    here, there = (machines[members.nodes.index(one)] for one in (worker, other))
    if here == there and len(set(machines)) > 1:
        log.warning(
            "node-%d keeps the state of node-%d, and both are on %s: if that fails, both are lost. Spread workers "
            "evenly over machines, or set workers.node_unit to the number of workers on each",
            *(other, worker, here),
        )
    place = decode(Address, json.loads(store.get(f"keeper/{other}")))
    return Buddy(members.generation, other, place)


def send_document(connection: socket.socket, document: Any) -> None:
    """Send a document."""
    data = json.dumps(encode(document)).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def receive_document(connection: socket.socket, kind: type[T], *, longest: int = _LONGEST) -> T:
    """Receive a document of at most `longest` bytes.

    Raises:
        OSError: the connection has ended, or something else was received.
    """
    head = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(head))
    (length,) = _LENGTH.unpack(head)
    if length > longest:
        raise OSError(f"a document of {length} bytes was announced: the sender is not a worker of this job")
    data = bytearray(length)
    receive_into(connection, memoryview(data))
    try:
        return decode(kind, json.loads(data))
    except (ValueError, SpecError) as error:
        raise OSError(f"a {kind.__name__} was expected, something else was received: {error}") from error


def receive_into(connection: socket.socket, room: memoryview) -> None:
    """Receive bytes until `room` is full. Raises OSError if the connection ends before."""
    while len(room):
        count = connection.recv_into(room)
        if not count:
            raise OSError("the connection has ended")
        room = room[count:]


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel find out within half a minute that the other machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
