"""Rendezvous by generation: the engine decides which workers meet, and when.

torch's own rendezvous waits to find out which workers are there. That costs 30 s of "last call" whenever fewer than the
maximum come. It also keeps one store over all restarts, and old keys in it sometimes make a restart fail. Here the
engine lists the workers of a generation beforehand, so no quorum is needed. All of them come, and the first one opens a
new store on a free port for them.
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

#: How long to wait for workers that already ran in the generation before, in addition to twice the grace period.
REJOIN_SECONDS = 60.0

#: How often workers check whether all of them have come.
_POLL_SECONDS = 0.005

#: How often a standby worker looks whether the training has ended.
_END_SECONDS = 1.0

_STORE_TIMEOUT = timedelta(seconds=300)


class LeftGeneration(Exception):
    """This worker is not a member of the newest generation, or the training is finished."""


class NotNeeded(Exception):
    """This worker has stood by to the end of the training."""


class WorkersMissing(Exception):
    """Workers of a generation did not come in time."""


def meet(
    node: Worker, prepare: Callable[[Members, TCPStore], bool] = lambda members, store: True
) -> tuple[Members, Meeting, TCPStore]:
    """Join the newest generation and wait until all its workers have come.

    A worker that is too late for it waits for the next one. The first worker of the generation opens a store on a free
    port and publishes the address. The others connect, and each sets a key for itself.

    Args:
        node: this worker.
        prepare: called on each worker when all have come, before the start of the generation is recorded. Returns False
            if it was interrupted, because the worker must end or a newer generation has begun.

    Returns:
        The members of the generation, the address of its store, and the store.

    Raises:
        LeftGeneration: this worker is not in the newest generation, or the others have finished the training.
        NotNeeded: it has stood by, and the others have finished the training.
        WorkersMissing: a worker did not come within `health.start_seconds`, although it could start.
        Stopped: the worker must end.
    """
    _be_standby(node)
    newest, health = node.files.newest_members(), node.record.spec.health
    seconds = health.start_seconds
    if newest is not None and _all_were_there(node, newest):
        # They only have to end their ranks and write a state.
        seconds = min(seconds, REJOIN_SECONDS + 2 * health.grace_seconds)
    timeout = RendezvousTimeout(node.store, attempt_of(node.record, newest), seconds)
    while True:
        members = node.files.newest_members()
        if members is not None and node.index in members.awaited:
            _stand_by(node, members)
            continue
        if members is None or node.index not in members.nodes:
            raise LeftGeneration(f"node-{node.index} is not among the workers of the newest generation")
        node.begin(members)
        found = _open(node, members) if node.index == members.nodes[0] else _join(node, members, timeout)
        if found is None:
            continue
        meeting, store = found
        if node.keeper is not None:
            announce(store, node.index, node.keeper.place, this_node())
        if node.lender is not None:
            node.lender.tell(store)
        store.set(f"came/{node.index}", "")
        everybody = [f"came/{index}" for index in members.nodes]
        while _goes_on(node, members, timeout):
            if store.check(everybody):
                is_lead = node.index == members.nodes[0]
                # By now all workers have written what they had saved in the attempt before.
                if is_lead and members.attempt is not None:
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


def _be_standby(node: Worker) -> None:
    """As long as this is a standby worker: wait for a generation that names it. Until then it has no ranks.

    Raises:
        NotNeeded: the others have finished the training.
        Stopped: the worker must end.
    """
    while node.index in node.files.standby().nodes:
        members = node.files.newest_members()
        if members is not None and node.files.has_finished(members, without=node.index):
            raise NotNeeded("the others have finished the training")
        if node.stop_at is not None or node.files.closed:
            raise Stopped
        looked = time.monotonic()
        while node.stop_at is None and time.monotonic() - looked < _END_SECONDS:
            time.sleep(node.files.standby_seconds)
            node.files.look_anew()
            if members is not None and node.files.superseded(members.generation):
                break


def _stand_by(node: Worker, members: Members) -> None:
    """Wait for the next generation: this one began without this worker."""
    while not node.files.superseded(members.generation):
        _still_wanted(node, members)
        time.sleep(node.files.poll_seconds)


def _open(node: Worker, members: Members) -> tuple[Meeting, TCPStore]:
    store = TCPStore(node.address, 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)
    meeting = Meeting(node.address, store.port)
    node.files.create(f"rendezvous/{members.generation:04d}.json", meeting)
    return meeting, store


def _join(node: Worker, members: Members, timeout: RendezvousTimeout) -> tuple[Meeting, TCPStore] | None:
    while _goes_on(node, members, timeout):
        meeting = node.files.meeting(members.generation)
        if meeting is not None:
            with contextlib.suppress(DistNetworkError, DistStoreError):  # not reachable yet, or no longer
                store = TCPStore(meeting.addr, meeting.port, is_master=False, timeout=timedelta(seconds=5))
                store.set_timeout(_STORE_TIMEOUT)
                return meeting, store
        time.sleep(node.files.poll_seconds)
    return None


def _goes_on(node: Worker, members: Members, timeout: RendezvousTimeout) -> bool:
    """Whether to go on waiting for this generation's workers. False if there is a newer generation."""
    _still_wanted(node, members)
    if node.superseded():
        return False
    if timeout.over:
        raise WorkersMissing(f"not all of workers {members.nodes} came to generation {members.generation}")
    return True


def _still_wanted(node: Worker, members: Members) -> None:
    """Raise an error if this worker need not wait: it must end, or the others have finished without it."""
    if node.stop_at is not None or node.files.closed:
        raise Stopped
    if node.files.has_finished(members, without=node.index):
        if _rejoined(node, members):
            raise WorkersMissing(f"workers that attempt {node.attempt} was waiting for have ended")
        raise LeftGeneration("the other workers have finished the training")


def _rejoined(node: Worker, members: Members) -> bool:
    """Whether a generation begins a new attempt in the job of the attempt before."""
    before = node.files.members(members.generation - 1)
    return before is not None and attempt_of(node.record, before) < attempt_of(node.record, members)


def _all_were_there(node: Worker, members: Members) -> bool:
    """Whether it begins a new attempt, and all its workers were in the generation before: none is a replacement."""
    before = node.files.members(members.generation - 1)
    return before is not None and _rejoined(node, members) and set(members.nodes) <= set(before.nodes)


def free_port() -> int:
    """A port that was free a moment ago, for launchers that open their own store."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port
