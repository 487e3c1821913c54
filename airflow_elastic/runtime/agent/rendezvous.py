"""Rendezvous by generation: the ranks of a job meet when, and as, the engine says.

torch's own rendezvous finds out by waiting who is there, which costs 30 s of "last call" whenever fewer than the most
workers come, and keeps one store over all restarts, whose old keys make a restart fail now and then. Here no quorum
has to be found: the engine alone makes the list of a generation's workers beforehand. All of them come. The first one
opens a fresh store on a free port, and there they meet.
"""

from __future__ import annotations

import contextlib
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistNetworkError, DistStoreError

from airflow_elastic.adapters.host.processes import this_node
from airflow_elastic.adapters.records.job_files import Began, Meeting, Members, attempt_of
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.runtime.agent.rendezvous_timeout import RendezvousTimeout
from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.runtime.tiers.peers.connection import announce, find_buddy

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.runtime.agent.worker import Worker

#: How long workers may take that were there a moment ago, beside their grace: one of them may have gone since.
REJOIN_SECONDS = 60.0

#: How often workers look whether all of them have come.
_POLL_SECONDS = 0.005

_STORE_TIMEOUT = timedelta(seconds=300)


class LeftGeneration(Exception):
    """This worker is not among those that train."""


class WorkersMissing(Exception):
    """Workers of a generation did not come in time."""


def meet(
    node: Worker, prepare: Callable[[Members, TCPStore], bool] = lambda members, store: True
) -> tuple[Members, Meeting, TCPStore]:
    """Come to the newest generation and wait until all its workers have come.

    A worker that came too late for it waits for the next one. Its first worker opens a store on a free port and says
    where; all others connect, and each leaves its name there.

    Args:
        node: this worker.
        prepare: what each of them does when all have come, before it is said that the generation begins; answers False
            where that was cut short, as the worker is to end or there is a newer generation.

    Returns:
        Its members, where they meet, and the store.

    Raises:
        Left: this worker is not in the newest generation, or the job is done without it.
        NotAllCame: somebody did not come within the time a start may take, once nothing held it up.
        Stopped: the worker was told to end.
    """
    newest, health = node.files.newest_members(), node.record.spec.health
    seconds = health.start_seconds
    if newest is not None and _all_were_there(node, newest):
        # They have their ranks to end, and a state to write.
        seconds = min(seconds, REJOIN_SECONDS + 2 * health.grace_seconds)
    patience = RendezvousTimeout(node.store, attempt_of(node.record, newest), seconds)
    while True:
        members = node.files.newest_members()
        if members is not None and node.index in members.awaited:
            _stand_by(node, members)
            continue
        if members is None or node.index not in members.nodes:
            raise LeftGeneration(f"node-{node.index} is not among the workers of the newest generation")
        node.begin(members)
        found = _open(node, members) if node.index == members.nodes[0] else _join(node, members, patience)
        if found is None:
            continue
        meeting, store = found
        if node.keeper is not None:
            announce(store, node.index, node.keeper.place, this_node())
        if node.lender is not None:
            node.lender.tell(store)
        store.set(f"came/{node.index}", "")
        everybody = [f"came/{index}" for index in members.nodes]
        while _goes_on(node, members, patience):
            if store.check(everybody):
                is_lead = node.index == members.nodes[0]
                if (
                    is_lead and members.attempt is not None
                ):  # all have written what they had saved of the one before
                    raise_fence(node.store, members.attempt)
                if not prepare(members, store):
                    continue
                if is_lead:
                    node.files.create(f"rendezvous/{members.generation:04d}.began", Began(time.time()))
                node.meeting_store = store
                if node.keeper is not None:
                    node.keeper.settle(members.generation)
                    unit = node.record.spec.workers.node_unit
                    node.neighbour = find_buddy(store, node.index, members, unit)
                if node.lender is not None:
                    node.lender.hear(store, members)
                return members, meeting, store
            time.sleep(_POLL_SECONDS)


def _stand_by(node: Worker, members: Members) -> None:
    """Wait for the generation after one that could not wait for this worker."""
    while not node.files.superseded(members.generation):
        _still_wanted(node, members)
        time.sleep(node.files.poll_seconds)


def _open(node: Worker, members: Members) -> tuple[Meeting, TCPStore]:
    store = TCPStore(node.address, 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    meeting = Meeting(node.address, store.port)
    node.files.create(f"rendezvous/{members.generation:04d}.json", meeting)
    return meeting, store


def _join(node: Worker, members: Members, patience: RendezvousTimeout) -> tuple[Meeting, TCPStore] | None:
    while _goes_on(node, members, patience):
        meeting = node.files.meeting(members.generation)
        if meeting is not None:
            with contextlib.suppress(DistNetworkError, DistStoreError):  # not yet reachable, or gone again
                store = TCPStore(meeting.addr, meeting.port, is_master=False, timeout=timedelta(seconds=5))
                store.set_timeout(_STORE_TIMEOUT)
                return meeting, store
        time.sleep(node.files.poll_seconds)
    return None


def _goes_on(node: Worker, members: Members, patience: RendezvousTimeout) -> bool:
    """Whether to go on waiting for this generation's workers; False where there is a newer generation."""
    _still_wanted(node, members)
    if node.superseded():
        return False
    if patience.over:
        raise WorkersMissing(f"not all of workers {members.nodes} came to generation {members.generation}")
    return True


def _still_wanted(node: Worker, members: Members) -> None:
    """Raise what ends a worker that waits: it is to end, or the others were done without it."""
    if node.stop_at is not None or node.files.closed:
        raise Stopped
    if _done_without_us(node, members):
        if _rejoined(node, members):
            raise WorkersMissing(f"workers that were to begin attempt {node.attempt} in this job have ended")
        raise LeftGeneration("the other workers have finished the training")


def _rejoined(node: Worker, members: Members) -> bool:
    """Whether a generation begins an attempt in the job of the one before."""
    before = node.files.members(members.generation - 1)
    return before is not None and attempt_of(node.record, before) < attempt_of(node.record, members)


def _all_were_there(node: Worker, members: Members) -> bool:
    """Whether it does, and all its workers were there a moment ago: none of them comes in the place of another."""
    before = node.files.members(members.generation - 1)
    return before is not None and _rejoined(node, members) and set(members.nodes) <= set(before.nodes)


def _done_without_us(node: Worker, members: Members) -> bool:
    """Whether a worker that was to come has finished instead: training ended while a scale step was under way."""
    others = (node.files.result(other) for other in members.nodes if other != node.index)
    return any(result is not None and result.outcome == "succeeded" for result in others)


def free_port() -> int:
    """A port that was free a moment ago, for launchers that open their own store."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port
