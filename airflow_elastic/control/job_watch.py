"""Watches the live attempt's job at its engine, beside everything else that a controller does."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.event_loop import end_task
from airflow_elastic.spec.errors import EngineError, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_elastic.engines.api import Engine, Job
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.status import JobStatus


class JobWatch:
    """Watches the job of one attempt at a time.

    Args:
        engine: where the job is.
        wake: set with each new snapshot.
        sit_out: reports an error that comes for the n-th time in a row, and waits before the next try.

    Attributes:
        status: the newest snapshot; None before the first one.
    """

    def __init__(
        self, engine: Engine, wake: asyncio.Event, sit_out: Callable[[ElasticError, int], Awaitable[None]]
    ) -> None:
        self._engine, self._wake, self._sit_out = engine, wake, sit_out
        self._task: tuple[int, asyncio.Task[None]] | None = None
        self.status: JobStatus | None = None

    @property
    def attempt(self) -> int | None:
        """The attempt that `status` belongs to."""
        return self._task[0] if self._task else None

    def watches(self, attempt: int) -> bool:
        """Whether this attempt is being watched."""
        return self._task is not None and self._task[0] == attempt and not self._task[1].done()

    def begin(self, attempt: int, job: Job, longest_pause: float) -> None:
        """Watch the job of an attempt. An error is forgotten once the watch has lasted for `longest_pause` seconds."""
        self._task = (attempt, asyncio.create_task(self._watch(job, longest_pause)))

    async def end(self) -> None:
        """Stop watching, and forget the snapshot."""
        if self._task is not None:
            await end_task(self._task[1])
        self._task = self.status = None

    async def _watch(self, job: Job, longest_pause: float) -> None:
        """Wait out errors here, so that nothing else waits for them."""
        troubles = 0
        while True:
            began, seen = time.monotonic(), False
            try:
                async for status in self._engine.watch(job):
                    seen = True
                    self.status = status
                    self._wake.set()
                # The job is over. Look again after a while, in case the judgement of the last snapshot was lost.
                await asyncio.sleep(5.0)
                return
            except (StoreError, EngineError) as error:
                # One snapshot does not reset the pause: a watch that always fails after it would be repeated without a
                # pause.
                worked = seen and time.monotonic() - began > longest_pause
                troubles = 1 if worked else troubles + 1
                await self._sit_out(error, troubles)
