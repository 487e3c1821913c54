"""Which workers an attempt trains with, if a cluster has room for some of them only.

The fewest workers that the specification allows are its quorum. Pure: the controller passes in the engine's snapshot,
starts a new generation of workers, and journals that.
"""

from __future__ import annotations

from airflow_elastic.core.state import Attempt
from airflow_elastic.spec.scaling.workers import Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase

#: It is unknown how long these take; a worker that pulls its image or starts counts as ready.
_HELD = (Waiting.QUEUED, Waiting.CAPACITY)


def regrouping(attempt: Attempt, workers: Workers, job: JobStatus, waited: float) -> tuple[int, ...] | None:
    """The workers that should train from now on; None if that changes nothing.

    Args:
        attempt: the live one.
        workers: of the specification.
        job: the newest snapshot.
        waited: seconds for which workers have been waiting without a break.
    """
    there = [worker for worker in job.workers if worker.phase is not WorkerPhase.LEFT]
    pending = [worker for worker in there if worker.phase is WorkerPhase.PENDING]
    held = [worker for worker in pending if worker.waiting in _HELD]
    if job.phases() - {WorkerPhase.RUNNING, WorkerPhase.PENDING} or len(pending) > len(held):
        return None  # the attempt ends, or a worker is about to come
    running = [worker.index for worker in there if worker.phase is WorkerPhase.RUNNING]
    wanted = tuple(running[: len(running) - len(running) % workers.node_unit])
    everybody = tuple(worker.index for worker in there)
    if wanted == (attempt.members or everybody) or len(wanted) < workers.at_least:
        return None
    if attempt.members is None and waited < workers.gather_seconds:
        return None
    return wanted
