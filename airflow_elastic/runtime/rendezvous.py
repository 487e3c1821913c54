"""Rendezvous by generation: the ranks of a job meet when, and as, the engine says.

torch's own rendezvous finds out by waiting who is there, which costs 30 s of "last call" whenever fewer than the most
workers come, and keeps one store over all restarts, whose old keys make a restart fail now and then. Here the set of
workers is known beforehand: a generation is a list of workers, made exclusively by the engine. All of them come, its
first one opens a fresh store on a free port, and that is the meeting.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from airflow_elastic.adapters.jobfiles import Meeting, Members
from airflow_elastic.runtime.node import Stopped

if TYPE_CHECKING:
    from airflow_elastic.runtime.node import Node

_POLL_SECONDS = 0.005
ADDRESS = "127.0.0.1"  # the local engine's workers share one machine


def meet(node: Node) -> tuple[Members, Meeting, TCPStore | None]:
    """Come to the newest generation and wait until all its workers have come.

    Returns its members, where they meet, and for its first worker the store that it has opened there.

    Raises:
        RendezvousGracefulExitError: this worker is not in the newest generation, or the job is done without it.
        RendezvousTimeoutError: somebody did not come within the time a start may take.
        Stopped: the worker was told to end.
    """
    deadline = time.monotonic() + node.record.spec.health.start_seconds
    store: TCPStore | None = None
    members: Members | None = None
    while True:
        newest = node.files.newest_members()
        if newest is None or node.index not in newest.nodes:
            raise RendezvousGracefulExitError(
                f"node-{node.index} is not among the workers of the newest generation"
            )
        if members is None or newest.generation != members.generation:
            members, store = newest, None
            node.begin(members.generation)
            if node.index == members.nodes[0]:
                store = TCPStore(
                    ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300)
                )
        here = f"rendezvous/{members.generation:04d}-node-{node.index}"
        if not (node.files.folder / here).exists():
            node.files.create(here, {})
        if all(
            (node.files.folder / f"rendezvous/{members.generation:04d}-node-{n}").exists()
            for n in members.nodes
        ):
            break
        if node.stop_at is not None:
            raise Stopped
        if _done_without_us(node, members):
            raise RendezvousGracefulExitError("the other workers have finished the training")
        if time.monotonic() > deadline:
            raise RendezvousTimeoutError(
                f"not all of workers {members.nodes} came to generation {members.generation}"
            )
        time.sleep(_POLL_SECONDS)
    name = f"rendezvous/{members.generation:04d}.json"
    if store is not None:
        node.files.create(name, Meeting(ADDRESS, store.port, time.time()))
    while (meeting := node.files.meeting(members.generation)) is None:
        if time.monotonic() > deadline or node.files.closed:
            raise RendezvousTimeoutError(f"the first worker of {members.nodes} did not open the meeting")
        time.sleep(_POLL_SECONDS)
    return members, meeting, store


def _done_without_us(node: Node, members: Members) -> bool:
    """Whether a worker that was to come has finished instead: training ended while a scale step was under way."""
    others = (node.files.result(other) for other in members.nodes if other != node.index)
    return any(result is not None and result.outcome == "succeeded" for result in others)


def free_port() -> int:
    """A port that was free a moment ago, for launchers that open their own store."""
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        port: int = listener.getsockname()[1]
        return port


class GenerationRendezvous(RendezvousHandler):
    """torch's rendezvous interface over `meet`; also where the agent's loop looks for orders."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        """A name for torch's own records."""
        return "airflow-elastic"

    @property
    def use_agent_store(self) -> bool:
        """Ranks use the generation's store: it is fresh, so there are no keys of former ones in it."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the workers of the newest generation. Raises what `meet` raises."""
        members, meeting, store = meet(self._node)
        if store is None:
            store = TCPStore(meeting.addr, meeting.port, is_master=False, timeout=timedelta(seconds=300))
        self._store = store
        rank = members.nodes.index(self._node.index)
        return RendezvousInfo(
            store, rank, len(members.nodes), RendezvousStoreInfo(meeting.addr, meeting.port)
        )

    def num_nodes_waiting(self) -> int:
        """What the agent asks after each look at its ranks: more than 0 makes it start them anew.

        Raises:
            Stopped: the worker was told to end, and may.
        """
        node = self._node
        if node.stop_at is not None and node.parked():
            raise Stopped
        return int(node.superseded() and node.parked())

    def is_closed(self) -> bool:
        """Whether nobody may join any more."""
        return self._node.files.closed

    def set_closed(self) -> None:
        """The engine closes jobs, not a worker."""

    def get_run_id(self) -> str:
        """The job's name."""
        return self._node.record.name

    def shutdown(self) -> bool:
        """Let go of the store."""
        self._store = None
        return True
