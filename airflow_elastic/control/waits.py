"""What the workers of an attempt wait for: when that is news, when they last did, and what others are told of it."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import Wait, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import JobStatus

#: What a controller last wrote of workers that wait is believed for so long: twice the longest pause it makes.
FRESH_SECONDS = 60.0

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

    def last_at(self, job: JobStatus | None, now: float) -> float:
        """When a worker was last known to wait, in the terms of `now`; `now` while nobody can tell. 0: never."""
        if job is None:
            return now
        if job.waiting is not None:
            self._last_at = now
        return self._last_at


def published_wait(store: Store, state: RunState, now: float) -> Wait | None:
    """What workers of the current attempt wait for, as a controller says in the status document; None: nobody knows.

    Only a controller hears the engine, and it journals nothing of this: so this is the only place to have it from.

    Raises:
        StoreError: storage is out of reach.
    """
    data = None if state.ended else store.get(layout.STATUS)
    if data is None:
        return None
    try:
        written = json.loads(data)
        current = written["attempts"][-1]["number"] == state.attempt.number
        if not current or written["waiting"] is None or now - written["at"] > FRESH_SECONDS:
            return None
        return decode(Wait, written["waiting"])
    except (ValueError, KeyError, IndexError, TypeError, SpecError):  # written by another release, or damaged
        return None
