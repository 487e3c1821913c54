"""Decides when a run asks for standby workers: further ones that start, but do not train. Pure.

The first ones are asked for when all workers train, so they take no room that training needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_elastic.core.state import Phase, RunState
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus

#: A standby worker that is lost again and again is asked for with pauses: so many seconds, doubling, up to so many.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 600.0

#: A standby worker that has been ready for so many seconds, or trains, makes former losses forgotten.
WELL_SECONDS = 60.0

_THERE = (WorkerPhase.PENDING, WorkerPhase.RUNNING)


def lacks_standby(state: RunState, job: JobStatus) -> bool:
    """Whether the live attempt trains with all its workers, and has fewer standby workers than it should.

    Args:
        state: of the run.
        job: the newest snapshot of the attempt's job.
    """
    wanted = state.spec.workers.standby
    attempt = state.attempt
    if not wanted or attempt.phase is not Phase.LIVE or attempt.workers != state.target:
        return False
    trains = job.phases() == {WorkerPhase.RUNNING} and attempt.members is None
    return trains and sum(worker.phase in _THERE for worker in job.standby_workers) < wanted


def lost_standby(job: JobStatus) -> tuple[WorkerStatus, ...]:
    """The standby workers that have ended."""
    return tuple(worker for worker in job.standby_workers if worker.phase not in _THERE)


def pause(losses: int) -> float:
    """Seconds to wait before another standby worker is asked for, after so many losses one after another."""
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (losses - 2), LONGEST_PAUSE_SECONDS) if losses > 1 else 0.0


def why_lost(lost: Sequence[WorkerStatus]) -> str | None:
    """Why these standby workers ended, in words; None if there are none."""
    reasons = (f"{worker.name} was lost: {worker.reason or 'no reason is known'}" for worker in lost)
    return "; ".join(reasons) or None
