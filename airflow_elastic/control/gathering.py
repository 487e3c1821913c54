"""The workers that a live attempt trains with: those that are ready, and as many as somebody outside the run wants."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from airflow_elastic.core.gang_size import regrouping
from airflow_elastic.core.state import Phase
from airflow_elastic.engines.api import Engine, Job, Regrouping
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec import events as ev

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus


async def followed(engine: Engine, state: RunState, job: Job, seen: JobStatus, at: float) -> Sequence[Event]:
    """Take a change of the workers by somebody outside the run as a scale step, as far as the run allows it."""
    asked = seen.asked
    if asked is None or state.attempt.phase is not Phase.LIVE or asked.request in state.planned_steps:
        return ()
    wanted = state.spec.workers.nearest(asked.workers)
    if wanted == state.attempt.workers == state.target:
        await engine.scale(job, wanted)  # undo the change
    return (ev.ScaleRequested(at, asked.request, wanted, ev.AUTOSCALER),)


async def gathered(
    engine: Engine, state: RunState, job: Job, seen: JobStatus, held: float, at: float
) -> Sequence[Event]:
    """Start training with the workers that are ready, and let those join that come later.

    Args:
        engine: of the run.
        state: of the run.
        job: of the current attempt.
        seen: its workers, as the engine last said.
        held: for how many seconds workers of it have been held up.
        at: epoch seconds.
    """
    able = engine.capabilities.regroup and find_launcher(state.spec.launcher).elastic
    if not able or state.attempt.phase is not Phase.LIVE or state.attempt.workers != state.target:
        return ()
    members = regrouping(state.attempt, state.spec.workers, seen, held)
    if members is None:
        return ()
    await cast("Regrouping", engine).regroup(job, members)
    return (ev.Regrouped(at, state.attempt.number, members),)
