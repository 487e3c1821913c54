"""The snapshots of a job's workers that an engine would give when an attempt ends."""

from __future__ import annotations

from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus

#: The signal of a crashed process.
_SIGSEGV = 11


def succeeded(workers: int) -> JobStatus:
    """All workers are done."""
    return JobStatus(tuple(_worker(i, WorkerPhase.SUCCEEDED) for i in range(workers)))


def crashed(workers: int) -> JobStatus:
    """A rank of the first worker has crashed; all agents are there."""
    error = (RankError(rank=0, signal=_SIGSEGV),)
    first = WorkerStatus("worker-0", WorkerPhase.FAILED, errors=error, standby=True)
    return JobStatus((first, *(_worker(i, WorkerPhase.RUNNING) for i in range(1, workers))))


def lost(workers: int, gone: int) -> JobStatus:
    """So many of the workers are gone with their machine."""
    return JobStatus(
        tuple(_worker(i, WorkerPhase.LOST if i < gone else WorkerPhase.RUNNING) for i in range(workers))
    )


def _worker(index: int, phase: WorkerPhase) -> WorkerStatus:
    return WorkerStatus(f"worker-{index}", phase)
