"""How long after the first sign of a failure workers may take to tell their side of it, before it is judged. Pure."""

from __future__ import annotations

from airflow_elastic.core.restart import is_written
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.status import JobStatus, Progress

SETTLE_SECONDS = 0.25

#: The same where agents tell of it by way of the run's storage, which may take the one longer than the other.
TELL_SECONDS = 1.5

#: The same where another worker could take a lost one's place, though nobody has more to tell: others may be lost, too.
ALONE_SECONDS = 0.1


def settling(job: JobStatus, training: JobStatus, state: RunState, progress: Progress | None = None) -> float:
    """Seconds.

    Args:
        job: a snapshot with a failure in it.
        training: the same of those workers that train.
        state: of the run.
        progress: the newest report of its attempt.
    """
    unwritten = progress is not None and progress.finished and not is_written(state, progress)
    if unwritten and job.recoverable(state.attempt.members):
        # Ranks have failed at their very end, and the agents write what training has come to. Where that takes longer,
        # or fails, they have it in memory in the next attempt.
        return state.spec.health.grace_seconds
    if training.settled:
        return ALONE_SECONDS if job.replaceable else 0.0
    return TELL_SECONDS if any(worker.standby for worker in job.workers) else SETTLE_SECONDS
