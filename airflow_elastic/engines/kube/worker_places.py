"""The places of workers in a job: those that come and go with its size, and those that replace lost ones.

Workers have numbers, and a cluster makes a pod for each number below the job's size. If it cannot make a pod again, a
worker with a higher number replaces the lost one. The old number stays empty. Standby workers have numbers, too.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.job_files import Standby
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
        size = size_of(following, files.standby())
        gone = [index for index in members.all if index not in following.all and index < size]
        members = following.spending(gone)
        if not files.begin(members):
            raise EngineError(f"job {name} is being scaled by somebody else")
    return size_of(members, files.standby())


def sized(members: Members, workers: int, ready: Collection[int] = (), lost: Collection[int] = ()) -> Group:
    """So many workers: new ones come at the end, or those with the highest numbers leave. The order stays.

    Args:
        members: the current ones.
        workers: how many.
        ready: standby workers, which come first.
        lost: numbers that no worker may have.
    """
    stay = sorted(members.all)[:workers]
    nodes = tuple(index for index in members.all if index in stay)
    more = (*ready, *itertools.islice(fresh(members, {*ready, *lost}), workers))
    return (*nodes, *more[: workers - len(nodes)]), ()


def of_all(members: Members, nodes: tuple[int, ...]) -> Group:
    """Only these workers; the others join later."""
    return nodes, tuple(sorted(set(members.all) - set(nodes)))


def fresh(members: Members, without: Collection[int] = ()) -> Iterator[int]:
    """Numbers for further workers, without those of lost ones, and these."""
    taken = {*(members.spent or ()), *without}
    return (index for index in itertools.count(max(members.all) + 1) if index not in taken)


def size_of(members: Members, standby: Standby) -> int:
    """How many numbers a job needs, including lost workers: otherwise a cluster forgets that they have failed."""
    return max((*members.all, *(members.spent or ()), *standby.nodes, *standby.lost)) + 1


class Shown:
    """The status of a job whose lost workers can be replaced, or which has standby workers.

    Args:
        files: opens its documents: a cached answer proves nothing. Called if other workers are lost than before, if the
            size has changed, or if `change` is another one.
        stands_by: whether the job may have standby workers.
    """

    def __init__(self, files: Callable[[], JobFiles], *, stands_by: bool) -> None:
        self._files, self._stands_by = files, stands_by
        self._looked_for: tuple[object, ...] = ()
        self._no_members: set[int] = set()
        self._standby = Standby()

    async def __call__(self, status: JobStatus, change: int, *, grows: bool) -> JobStatus:
        """The same: replaced workers have left, workers that can be replaced are marked, standby workers are apart.

        Args:
            status: of all workers.
            change: how often this process has changed the places.
            grows: whether the job can get further workers. If not, only standby workers replace lost ones.

        Raises:
            StoreError: its workers could not be read.
        """
        lost = {worker.index for worker in status.workers if worker.phase is WorkerPhase.LOST}
        if (lost or self._stands_by) and self._looked_for != (lost, len(status.workers), change):
            members, self._standby = await asyncio.to_thread(self._places)
            self._no_members = lost - set(members.all if members else lost)
            self._looked_for = (lost, len(status.workers), change)
        apart = {*self._standby.nodes, *self._standby.lost}
        standby = tuple(worker for worker in status.workers if worker.index in self._standby.nodes)
        status = replace(status, standby_workers=standby)
        may_replace = grows or len(lost - self._no_members - apart) <= len(status.ready)
        workers = (self._seen(one, may_replace) for one in status.workers if one.index not in apart)
        return replace(status, workers=tuple(workers))

    def _places(self) -> tuple[Members | None, Standby]:
        files = self._files()
        return files.newest_members(), files.standby()

    def _seen(self, worker: WorkerStatus, may_replace: bool) -> WorkerStatus:
        if worker.phase is not WorkerPhase.LOST or worker.index < 0:
            return worker
        if worker.index in self._no_members:
            return WorkerStatus(worker.name, WorkerPhase.LEFT, reason="another one has its place")
        return replace(worker, replaceable=may_replace)
