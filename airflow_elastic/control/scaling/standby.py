"""Asks the engine for standby workers, beside the training. Training never waits for them."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, cast

from airflow_elastic.core.health.standby import WELL_SECONDS, lacks_standby, lost_standby, pause, why_lost
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.errors import EngineError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine, Job, StandingBy
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus

log = logging.getLogger(__name__)

#: A snapshot shows new workers after so many seconds at the latest.
_SEEN_SECONDS = 2.0


class StandbyWorkers:
    """The standby workers of a run, from snapshot to snapshot.

    Args:
        engine: of the run.
        now: epoch seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self, engine: Engine, now: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine, self._now, self._clock = engine, now, clock
        self._lost: set[tuple[str, str]] = set()
        self._ready: set[tuple[str, str]] = set()
        self._ready_since: float | None = None
        self._not_before = -_SEEN_SECONDS

    async def look(self, state: RunState, seen: JobStatus, job_of: Callable[[int], Job]) -> Sequence[Event]:
        """Ask for standby workers if some are missing. Returns the event for those that were asked for.

        Args:
            state: of the run.
            seen: the workers of the current attempt, as the engine last said.
            job_of: gives the job of an attempt.
        """
        if not state.spec.workers.standby:
            return ()
        job, lost = job_of(state.attempt.number), lost_standby(seen)
        self._forget_losses(job.name, seen)
        if not lacks_standby(state, seen) or self._clock() < self._not_before:
            return ()
        self._lost |= {(job.name, worker.name) for worker in lost}
        self._not_before = self._clock() + max(_SEEN_SECONDS, pause(len(self._lost) + 1))
        try:
            numbers = await cast("StandingBy", self._engine).stand_by(job)
        except (EngineError, StoreError) as error:
            log.warning("no standby worker can be asked for, trying again: %s", error)
            return ()
        reason = why_lost(lost)
        return (ev.StandbyAsked(self._now(), state.attempt.number, numbers, reason),) if numbers else ()

    def _forget_losses(self, job: str, seen: JobStatus) -> None:
        """Former losses no longer delay anything once a standby worker trains, or has been ready for a while."""
        if any((job, worker.name) in self._ready for worker in seen.workers):
            self._lost.clear()
        ready = {(job, one.name) for one in seen.ready}
        if not ready or self._ready_since is None:
            self._ready_since = self._clock() if ready else None
        elif self._clock() - self._ready_since >= WELL_SECONDS:
            self._lost.clear()
        self._ready = ready
