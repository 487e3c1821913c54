"""What the workers of an attempt wait for, over time: when that is news, and when they last did."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_elastic.spec.status import Waiting, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.spec.status import JobStatus, Wait

#: A change of words only ("0/3 nodes", then "0/4 nodes"), or of how many workers wait, is news so often.
WORDS_SECONDS = 60.0


class Waits:
    """One attempt's workers, from snapshot to snapshot.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: Wait | None = None
        self._told_at = 0.0
        self._last_at = 0.0
        self._held_at: float | None = None

    def news(self, job: JobStatus) -> bool:
        """Whether what the workers wait for has to be told now. What is no news yet may become it: ask again."""
        wait = job.wait
        if wait == self._told or job.failed:
            return False
        if wait is not None and self._told is not None and wait.state is self._told.state:
            if self._clock() - self._told_at < WORDS_SECONDS:
                return False
        elif wait is None and WorkerPhase.PENDING in job.phases():
            return False  # the engine does not say: neither that it goes on, nor that it is over
        self._told, self._told_at = wait, self._clock()
        return True

    def held_seconds(self, job: JobStatus) -> float:
        """For how long workers have waited for a queue or for capacity, without a break."""
        if job.waiting not in (Waiting.QUEUED, Waiting.CAPACITY):
            self._held_at = None
            return 0.0
        if self._held_at is None:
            self._held_at = self._clock()
        return self._clock() - self._held_at

    def last_at(self, job: JobStatus | None, now: float) -> float:
        """When a worker was last known to wait, in the terms of `now`; `now` while nobody can tell. 0: never."""
        if job is None:
            return now
        if job.waiting is not None:
            self._last_at = now
        return self._last_at
