"""How long to wait for more evidence after the first sign of a failure, before it is judged. Pure."""

from __future__ import annotations

from airflow_elastic.core.restart import is_written
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.status import JobStatus, Progress

SETTLE_SECONDS = 0.25

#: The same if agents report by way of the run's storage, which may be slower for one than for another.
TELL_SECONDS = 1.5

#: The same if a lost worker can be replaced, though no more evidence can come: other workers may be lost, too.
ALONE_SECONDS = 0.1


def settle_time(
    job: JobStatus, training: JobStatus, state: RunState, progress: Progress | None = None
) -> float:
    """The wait, in seconds.

    Args:
        job: a snapshot with a failure in it.
        training: the same with only the workers that train.
        state: of the run.
        progress: the newest report of its attempt.
    """
    unwritten = progress is not None and progress.finished and not is_written(state, progress)
    if unwritten and job.recoverable(state.attempt.members):
        # Ranks have failed at their very end, and the agents still write the last state: for as long as
        # `agent.last_save` tries. If that fails, the next attempt has the state in memory.
        health = state.spec.health
        return max(health.grace_seconds, health.no_progress_seconds / 2)
    if training.settled:
        return ALONE_SECONDS if job.replaceable else 0.0
    return TELL_SECONDS if any(worker.standby for worker in job.workers) else SETTLE_SECONDS
