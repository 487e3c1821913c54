"""Which of its workers an attempt trains with, where a cluster has room for some of them only.

The fewest workers that the specification allows are its quorum. Pure: the controller passes in what the engine shows,
starts a new generation of workers, and journals that.
"""

from __future__ import annotations

from airflow_elastic.core.state import Attempt
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase

#: Nobody knows how long these take; a worker that pulls its image, or starts, is as good as there.
_HELD = (Waiting.QUEUED, Waiting.CAPACITY)


def regrouping(attempt: Attempt, workers: Workers, job: JobStatus, waited: float) -> tuple[int, ...] | None:
    """The workers that are to train from now on, where these are others than those that do; None: leave it.

    Args:
        attempt: the live one.
        workers: of the specification.
        job: the newest snapshot.
        waited: for how many seconds workers have been held up without a break.
    """
    there = [worker for worker in job.workers if worker.phase is not WorkerPhase.LEFT]
    pending = [worker for worker in there if worker.phase is WorkerPhase.PENDING]
    held = [worker for worker in pending if worker.waiting in _HELD]
    if job.phases() - {WorkerPhase.RUNNING, WorkerPhase.PENDING} or len(pending) > len(held):
        return None  # it ends, or somebody is about to come
    running = [worker.index for worker in there if worker.phase is WorkerPhase.RUNNING]
    wanted = tuple(running[: len(running) - len(running) % workers.node_unit])
    everybody = tuple(worker.index for worker in there)
    if wanted == (attempt.members or everybody) or len(wanted) < workers.at_least:
        return None
    if attempt.members is None and waited < workers.gather_seconds:
        return None
    return wanted
