"""Keeping what the engine shows of the live attempt's job, beside whatever else a controller does."""

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


class Watching:
    """A watch of one attempt's job at a time.

    Args:
        engine: where the job is.
        wake: set at each news.
        sit_out: tells of trouble that comes for the n-th time in a row, and waits before it is tried again.

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
        """The attempt that `status` is of."""
        return self._task[0] if self._task else None

    def watches(self, attempt: int) -> bool:
        """Whether it is at work for this attempt."""
        return self._task is not None and self._task[0] == attempt and not self._task[1].done()

    def begin(self, attempt: int, job: Job, longest_pause: float) -> None:
        """Watch the job of an attempt. What it shows counts as over once it has lasted for `longest_pause` seconds."""
        self._task = (attempt, asyncio.create_task(self._watch(job, longest_pause)))

    async def end(self) -> None:
        """Watch no more, and forget what was seen."""
        if self._task is not None:
            await end_task(self._task[1])
        self._task = self.status = None

    async def _watch(self, job: Job, longest_pause: float) -> None:
        """Trouble is sat out here, so that nothing else waits for it."""
        troubles = 0
        while True:
            began, seen = time.monotonic(), False
            try:
                async for status in self._engine.watch(job):
                    seen = True
                    self.status = status
                    self._wake.set()
                # Over. Looked at again after a while, should the judgement of what was seen have been lost.
                await asyncio.sleep(5.0)
                return
            except (StoreError, EngineError) as error:
                # One that always fails after its first word would be tried without a pause if any word were enough.
                worked = seen and time.monotonic() - began > longest_pause
                troubles = 1 if worked else troubles + 1
                await self._sit_out(error, troubles)
