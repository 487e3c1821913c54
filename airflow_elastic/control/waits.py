"""What the workers of an attempt wait for, over time: when a change is reported, and when they last waited."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_elastic.spec.status import Waiting, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.spec.status import JobStatus, Wait

#: The least time between reports, if only the words change ("0/3 nodes", then "0/4 nodes") or how many workers wait.
WORDS_SECONDS = 60.0


class Waits:
    """The waits of one attempt's workers, from snapshot to snapshot.

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
        """Whether to report now what the workers wait for. Ask again later: a small change is reported with a delay."""
        wait = job.wait
        if wait == self._told or job.failed:
            return False
        if wait is not None and self._told is not None and wait.state is self._told.state:
            if self._clock() - self._told_at < WORDS_SECONDS:
                return False
        elif wait is None and WorkerPhase.PENDING in job.phases():
            return False  # unknown: the wait may go on or be over
        self._told, self._told_at = wait, self._clock()
        return True

    def held_seconds(self, job: JobStatus) -> float:
        """For how long workers have waited for a queue or for capacity without a break, in seconds."""
        if job.waiting not in (Waiting.QUEUED, Waiting.CAPACITY):
            self._held_at = None
            return 0.0
        if self._held_at is None:
            self._held_at = self._clock()
        return self._clock() - self._held_at

    def last_at(self, job: JobStatus | None, now: float) -> float:
        """When a worker was last known to wait, on the clock of `now`; `now` while it is unknown; 0 for never."""
        if job is None:
            return now
        if job.waiting is not None:
            self._last_at = now
        return self._last_at
