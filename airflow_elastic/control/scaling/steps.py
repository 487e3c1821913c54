"""How many workers a live attempt trains with: scale steps, and those workers that are ready.

An engine carries a scale step out while the controller does other things. A step may wait for the workers of an earlier
one, which still save. Meanwhile workers fail, requests arrive, and runs are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

from airflow_elastic.adapters.host.event_loop import end_task
from airflow_elastic.control.scaling.autoscaler import Autoscaler
from airflow_elastic.control.scaling.standby import StandbyWorkers
from airflow_elastic.core.machine import due
from airflow_elastic.core.scaling.gang_size import regrouping
from airflow_elastic.core.state import Phase
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Scale
from airflow_elastic.spec.errors import ElasticError, EngineError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine, Job, Regrouping
    from airflow_elastic.spec.actions import Action
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress

#: The controller waits so long for a step before it looks around again.
_AT_ONCE_SECONDS = 0.2


class Scaling:
    """One scale step at a time.

    Args:
        engine: whose jobs are scaled.
        wake: set when a step is done.
        now: epoch seconds.
    """

    def __init__(self, engine: Engine, wake: asyncio.Event, now: Callable[[], float]) -> None:
        self._engine, self._wake, self._now = engine, wake, now
        self._step: tuple[int, asyncio.Task[None]] | None = None
        self._in_doubt = False
        self.autoscaler = Autoscaler(engine, wake, now)
        self._standby = StandbyWorkers(engine, now)

    def due(self, state: RunState) -> tuple[Action, ...]:
        """The actions that are due. If the result of an aborted step is unknown, one is a step to the wanted number."""
        actions = due(state)
        attempt = state.attempt
        if self._in_doubt and attempt.phase is Phase.LIVE and attempt.workers == state.target:
            return (Scale(attempt.number, state.target), *actions)
        return actions

    async def carry_out(self, action: Scale, job: Job) -> ev.Event | None:
        """Begin the step, or return the event of the finished one, which may be another step; None while it goes on."""
        if self._step is None:
            self._in_doubt = False
            task = asyncio.create_task(self._engine.scale(job, action.workers), name=f"scale {job.name}")
            task.add_done_callback(lambda _: self._wake.set())
            self._step = action.workers, task
        workers, task = self._step
        if not (await asyncio.wait([task], timeout=_AT_ONCE_SECONDS))[0]:
            return None
        self._step = None
        try:
            await task
        except EngineError as error:
            return ev.ScaleFailed(self._now(), action.attempt, workers, str(error))
        return ev.Scaled(self._now(), action.attempt, workers)

    async def news(
        self,
        state: Callable[[], RunState],
        progress: Progress | None,
        seen: JobStatus,
        held: float,
        job_of: Callable[[int], Job],
    ) -> AsyncIterator[Sequence[Event]]:
        """The events that change with how many workers the run trains, each after the one before is recorded.

        Args:
            state: gives the run's newest state.
            progress: its newest report.
            seen: the workers of the current attempt, as the engine last said.
            held: for how many seconds workers of it have been held up.
            job_of: gives the job of an attempt.
        """
        yield await followed(self._engine, state(), job_of, seen, self._now())
        yield await gathered(self._engine, state(), job_of, seen, held, self._now())
        yield await self._standby.look(state(), seen, job_of)
        yield await self.autoscaler.look(state(), progress, seen, held, job_of)

    async def end(self) -> None:
        """Abort the current step, before anything else is done to the job."""
        await self.autoscaler.end()
        if self._step is not None:
            _, task = self._step
            self._step, self._in_doubt = None, True
            with contextlib.suppress(ElasticError):
                await end_task(task)


async def followed(
    engine: Engine, state: RunState, job_of: Callable[[int], Job], seen: JobStatus, at: float
) -> Sequence[Event]:
    """Take a change of the workers by somebody outside the run as a scale step, as far as the run allows it."""
    asked = seen.asked
    if asked is None or state.attempt.phase is not Phase.LIVE or asked.request in state.planned_steps:
        return ()
    wanted = state.spec.workers.nearest(asked.workers)
    if wanted == state.attempt.workers == state.target:
        await engine.scale(job_of(state.attempt.number), wanted)  # undo the change
    return (ev.ScaleRequested(at, asked.request, wanted, ev.AUTOSCALER),)


async def gathered(
    engine: Engine, state: RunState, job_of: Callable[[int], Job], seen: JobStatus, held: float, at: float
) -> Sequence[Event]:
    """Start training with the workers that are ready, and let those join that come later.

    Args:
        engine: of the run.
        state: of the run.
        job_of: gives the job of an attempt.
        seen: the workers of the current attempt, as the engine last said.
        held: for how many seconds workers of it have been held up.
        at: epoch seconds.
    """
    if state.attempt.phase is not Phase.LIVE or state.attempt.workers != state.target:
        return ()
    members = regrouping(state.attempt, state.spec.workers, seen, held)
    if members is None:
        return ()
    # Last: each look comes here, and the launcher is looked up among installed packages.
    if not (engine.capabilities.regroup and find_launcher(state.spec.launcher).elastic):
        return ()
    await cast("Regrouping", engine).regroup(job_of(state.attempt.number), members)
    return (ev.Regrouped(at, state.attempt.number, members),)
