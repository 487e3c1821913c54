"""Two workers in this process that keep each other's states."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.runtime.agent.worker import LOCALHOST
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.peers.buddy_memory import BuddyMemory
from airflow_elastic.runtime.tiers.peers.buddy_sender import BuddySender
from airflow_elastic.runtime.tiers.peers.connection import Buddy, Hello, send_document
from airflow_elastic.runtime.tiers.peers.peer_client import ENVIRONMENT, PeerFile, find_peer_files
from airflow_elastic.runtime.tiers.peers.peer_server import PeerServer
from airflow_elastic.runtime.tiers.shared_memory import MEMORY, Note
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.saving import SavingWorker


class Pair:
    """Two workers with a rank each, of which the second is the one that may get lost."""

    def __init__(self, run: Path) -> None:
        self.run = run
        policy = CheckpointPolicy(buddies=True)
        self.workers = [SavingWorker(str(run), index=index, of=2, policy=policy) for index in range(2)]
        for worker in self.workers:
            worker.node.keeper = BuddyMemory(LOCALHOST, 1)
        self.sharers = []
        for worker, other in zip(self.workers, reversed(self.workers), strict=True):
            worker.node.neighbour = Buddy(1, other.node.index, self.keeper(other.node.index).place)
            self.sharers.append(BuddySender(worker.node))

    def keeper(self, index: int) -> BuddyMemory:
        found = self.workers[index].node.keeper
        assert found is not None
        return found

    def save(self, what: Stateful, step: int) -> None:
        """Into memory, when the one before has been given."""
        for worker, sharer in zip(self.workers, self.sharers, strict=True):
            saver, at = worker.saver, Position(0, step, step)
            until(lambda s=saver, p=at: s.save(what, step, p, reason=MEMORY, metrics={}), "the state before")
            sharer.news()

    def kept(self, index: int) -> list[int]:
        return [step for _, step in shared_memory.common(self.keeper(index).slots)]

    def cut_second(self) -> None:
        """Its connection breaks."""
        connection = self.sharers[1]._connection
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)

    def lose_second(self) -> None:
        """As a process does that is killed: its connections end without a word."""
        assert self.sharers[1].stop()
        self.cut_second()
        until(lambda: self.keeper(0).lost == 1, "the loss to be noticed")

    def steps(self) -> list[int]:
        return checkpoints.steps(self.workers[0].store)


def borrowed_by_a_third(two: Pair, monkeypatch: pytest.MonkeyPatch) -> dict[str, PeerFile]:
    """What the ranks of a third worker, in the place of the second one, find that the first one lends."""
    lender, newcomer = PeerServer(two.workers[0].node), SavingWorker(str(two.run), attempt=2, index=2, of=3)
    borrower = PeerServer(newcomer.node)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for one in (lender, borrower):
        one.tell(store)
    borrower.hear(store, Members(2, (0, 2), 0.0, attempt=2))
    monkeypatch.setenv(ENVIRONMENT, borrower.path)
    return dict(find_peer_files())


@contextmanager
def pair(run: Path) -> Iterator[Pair]:
    two = Pair(run)
    for sharer in two.sharers:
        sharer.start()
    try:
        yield two
    finally:
        for sharer in two.sharers:
            sharer.finish(lambda: True, done=False)
        for worker in two.workers:
            two.keeper(worker.node.index).close()


def objects(seed: int) -> Stateful:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    return Stateful(model, (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),), {})


@contextmanager
def speaking(to: BuddyMemory, token: str, number: int = 1) -> Iterator[socket.socket]:
    with socket.create_connection((to.place.addr, to.place.port), timeout=PATIENCE_SECONDS) as connection:
        send_document(connection, Hello(token, 1, 1, number))
        yield connection


@contextmanager
def staged(two: Pair, step: int) -> Iterator[tuple[Note, bytearray]]:
    """What the second worker's rank has in memory after a step."""
    worker = two.workers[1]
    worker.words[shared_page.GIVEN] = step  # whatever was before
    assert worker.saver.save(objects(step), step, Position(0, step, step), reason=MEMORY, metrics={})
    ((slot, note),) = shared_memory.held(worker.node.slots.of, (1, step))
    yield note, bytearray(slot.data(note.kept_bytes))
    slot.release()
