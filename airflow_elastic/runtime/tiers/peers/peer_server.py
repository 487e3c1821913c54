"""Serves checkpoint files from an agent's memory to ranks of other workers, which need not read them from storage.

These are the states that its own ranks have staged, and those that it keeps for its neighbour. They are served as the
same files, byte for byte, that were written to storage. Readers compare every block with the committed checksums, so it
does not matter where a file comes from. An agent lists its files at the rendezvous, when no rank stages a state.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.job_files import attempt_of
from airflow_elastic.runtime.tiers.peers.connection import (
    Address,
    Answer,
    Listener,
    keep_alive,
    receive_document,
    send_document,
)
from airflow_elastic.runtime.tiers.peers.peer_client import PeerFile, RangeRequest
from airflow_elastic.runtime.tiers.shared_memory import HEADER_BYTES, StagingSlot
from airflow_elastic.runtime.tiers.storage.checkpoint_files import file_keys
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import TCPStore

    from airflow_elastic.adapters.records.job_files import Members
    from airflow_elastic.runtime.tiers.worker import TierWorker

log = logging.getLogger(__name__)

#: How long a reader may take to send its request, and how long it may stop receiving.
_PATIENCE_SECONDS = 10.0
_WANT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _SlotFile:
    """A file in a slot: the slot's descriptor, the state that it must hold, and the size of the file in bytes."""

    descriptor: int
    age: tuple[int, int]
    size: int


@dataclass(frozen=True, slots=True)
class _Offer:
    """The address of a worker's server, and the sizes of its files by key."""

    place: Address
    files: dict[str, int]


class PeerServer:
    """A thread of the agent that sends files from its memory to ranks of other workers.

    Args:
        node: the worker.
    """

    def __init__(self, node: TierWorker) -> None:
        self._node = node
        self._held: dict[str, _SlotFile] = {}
        self._loans = os.memfd_create("airflow-elastic-loans")  # for its own ranks: other workers' files
        self._listener = Listener(node.address, "lender", self._lend)

    @property
    def path(self) -> str:
        """The path at which this worker's ranks find the list of other workers' files."""
        return f"/proc/{os.getpid()}/fd/{self._loans}"

    def tell(self, store: TCPStore) -> None:
        """Publish this agent's files, before the worker reports that it has come."""
        self._held = dict(self._found())
        offer = _Offer(self._listener.place, {key: held.size for key, held in self._held.items()})
        store.set(f"lender/{self._node.index}", json.dumps(encode(offer)))

    def hear(self, store: TCPStore, members: Members) -> None:
        """Write the list of other workers' files for this worker's ranks, once all workers have come."""
        others = [index for index in members.nodes if index != self._node.index]
        loans: dict[str, PeerFile] = {}
        for offer in store.multi_get([f"lender/{index}" for index in others]) if others else ():
            other = decode(_Offer, json.loads(offer))
            loans |= {key: PeerFile(other.place, size) for key, size in other.files.items()}
        os.ftruncate(self._loans, 0)
        os.pwrite(self._loans, json.dumps(encode(loans)).encode(), 0)

    def _found(self) -> Iterator[tuple[str, _SlotFile]]:
        kept = self._node.keeper.slots if self._node.keeper else []
        own = [slot for each in self._node.slots.of for slot in each]
        for slot in (*own, *(slot for each in kept for slot in each)):
            mine = StagingSlot.open(f"/proc/self/fd/{slot.fileno()}")
            note = mine.note() if mine.hold(reading=True) else None  # else a writer has locked it
            mine.release()
            members = self._node.files.members(note.generation) if note else None
            if note is None or members is None:
                continue
            attempt = attempt_of(self._node.record, members)
            folder = layout.checkpoint_data(note.step, attempt, note.generation)
            held = _SlotFile(slot.fileno(), (note.generation, note.step), note.kept_bytes)
            yield file_keys(folder, note.rank)[0], held
            if slot not in own:  # this worker may have written it, under another name
                yield file_keys(folder, note.rank, self._node.index)[0], held

    def _lend(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the reader has gone, or needs no more
            connection.settimeout(_PATIENCE_SECONDS)
            keep_alive(connection)
            want = receive_document(connection, RangeRequest, longest=_WANT_BYTES)
            if not self._listener.knows(want.token):
                log.warning("a connection was closed because its sender is not a rank of this job")
                return
            held = self._held.get(want.key)
            if held is None or not 0 <= want.start <= want.start + want.size <= held.size:
                send_document(connection, Answer(f"{want.key} is not here"))
                return
            self._send(connection, held, want)

    def _send(self, connection: socket.socket, held: _SlotFile, want: RangeRequest) -> None:
        slot = StagingSlot.open(f"/proc/self/fd/{held.descriptor}")  # a lock belongs to an open file
        if not slot.hold(reading=True):
            send_document(connection, Answer(f"{want.key} is being copied over"))
            return
        try:
            if slot.age != held.age:
                send_document(connection, Answer(f"{want.key} is not here any more"))
                return
            send_document(connection, Answer())
            if want.size:
                with open(slot.fileno(), "rb", buffering=0, closefd=False) as file:
                    connection.sendfile(file, HEADER_BYTES + want.start, want.size)
        finally:
            slot.release()
