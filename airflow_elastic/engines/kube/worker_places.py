"""The places of workers in a job: those that come and go with its size, and those that replace lost ones.

Workers have numbers, and a cluster makes a pod for each number below the job's size. If it cannot make a pod again, a
worker with a higher number replaces the lost one. The old number stays empty.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus

if TYPE_CHECKING:
    from airflow_elastic.adapters.records.job_files import JobFiles, Members


Group = tuple[tuple[int, ...], tuple[int, ...]]  # the workers that train, and those that join later


def regroup(files: JobFiles, name: str, choose: Callable[[Members], Group]) -> int:
    """Begin a generation of other workers, unless the newest one has the same; returns the size that the job needs.

    Args:
        files: the job's documents.
        name: of the job.
        choose: returns the workers, given the current ones.

    Raises:
        EngineError: there is no such job, or somebody else is changing it.
    """
    members = files.newest_members()
    if members is None or files.closed:
        raise EngineError(f"job {name} is not there to be scaled")
    nodes, awaited = choose(members)
    if (members.nodes, members.awaited) != (nodes, awaited):
        following = replace(members, generation=members.generation + 1, nodes=nodes, awaited=awaited)
        # For the cluster, a worker that leaves a number which the job keeps has failed, and cannot come again.
        gone = [index for index in members.all if index not in following.all and index < size_of(following)]
        members = following.spending(gone)
        if not files.begin(members):
            raise EngineError(f"job {name} is being scaled by somebody else")
    return size_of(members)


def sized(members: Members, workers: int) -> Group:
    """So many workers: new ones come at the end, or those with the highest numbers leave. The order stays."""
    stay = sorted(members.all)[:workers]
    nodes = tuple(index for index in members.all if index in stay)
    return (*nodes, *itertools.islice(fresh(members), workers - len(nodes))), ()


def of_all(members: Members, nodes: tuple[int, ...]) -> Group:
    """Only these workers; the others join later."""
    return nodes, tuple(sorted(set(members.all) - set(nodes)))


def fresh(members: Members) -> Iterator[int]:
    """Numbers for further workers, without those of lost ones."""
    return (index for index in itertools.count(max(members.all) + 1) if index not in (members.spent or ()))


def size_of(members: Members) -> int:
    """How many numbers a job needs, including lost workers: otherwise a cluster forgets that they have failed."""
    return max((*members.all, *(members.spent or ()))) + 1


class Shown:
    """The status of a job whose lost workers can be replaced.

    Args:
        members: reads its current workers. Called if other workers are lost than before, or the size has changed.
    """

    def __init__(self, members: Callable[[], Members | None]) -> None:
        self._members = members
        self._looked_for: tuple[object, ...] = ()
        self._no_members: set[int] = set()

    async def __call__(self, status: JobStatus) -> JobStatus:
        """The same: replaced workers have left, and workers that can be replaced are marked.

        Raises:
            StoreError: its workers could not be read.
        """
        lost = {worker.index for worker in status.workers if worker.phase is WorkerPhase.LOST}
        if lost and self._looked_for != (lost, len(status.workers)):
            members = await asyncio.to_thread(self._members)
            self._no_members = lost - set(members.all if members else lost)
            self._looked_for = (lost, len(status.workers))
        return replace(status, workers=tuple(self._seen(worker) for worker in status.workers))

    def _seen(self, worker: WorkerStatus) -> WorkerStatus:
        if worker.phase is not WorkerPhase.LOST or worker.index < 0:
            return worker
        if worker.index in self._no_members:
            return WorkerStatus(worker.name, WorkerPhase.LEFT, reason="another one has its place")
        return replace(worker, replaceable=not worker.preempted)
