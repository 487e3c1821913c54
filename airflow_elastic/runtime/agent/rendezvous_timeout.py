"""How long a worker waits for the others of its generation: not by their machines' delay, but by their own."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_elastic.adapters.records.reports import read_wait
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec.errors import StoreError

#: How often it is looked whether any of them still waits for its start, at least; ten times within the limit.
_LOOK_SECONDS = 30.0


class RendezvousTimeout:
    """Runs out after some time in which no worker was seen to wait for a queue, a machine or its image.

    Where a cluster has room for some of the workers only, the first ones may stand here for a day. Giving up would
    cost a restart each time, after which the next attempt meets the same.

    Args:
        store: where the run lies.
        attempt: number of the attempt.
        seconds: how long the others may take once they could start.
        clock: seconds, monotonic.
    """

    def __init__(
        self, store: Store, attempt: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._attempt, self._seconds, self._clock = store, attempt, seconds, clock
        self._since = self._looked_at = clock()

    @property
    def over(self) -> bool:
        """Whether the others have had their time."""
        now = self._clock()
        if now - self._looked_at >= min(_LOOK_SECONDS, self._seconds / 10):
            self._looked_at = now
            if self._others_wait():
                self._since = now
        return now - self._since > self._seconds

    def _others_wait(self) -> bool:
        try:
            return read_wait(self._store, self._attempt) is not None
        except StoreError:  # nobody can be seen to wait, nor to come
            return True
