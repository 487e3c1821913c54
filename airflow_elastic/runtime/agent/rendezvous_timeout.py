"""How long a worker waits for the others of its generation. Time that they wait for a machine does not count."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_elastic.adapters.records.reports import read_wait
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec.errors import StoreError

#: The longest time between two checks whether a worker still waits for its start. At least ten within the limit.
_LOOK_SECONDS = 30.0


class RendezvousTimeout:
    """Runs out after some time in which no worker was seen to wait for a queue, a machine or its image.

    If a cluster has room for only some of the workers, the first ones may wait for a day. To give up would cost a
    restart, and the next attempt would wait again.

    Args:
        store: where the run is stored.
        attempt: number of the attempt.
        seconds: how long the others may take once they can start.
        clock: returns seconds, monotonic.
    """

    def __init__(
        self, store: Store, attempt: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._attempt, self._seconds, self._clock = store, attempt, seconds, clock
        self._since = self._looked_at = clock()

    @property
    def over(self) -> bool:
        """Whether the time of the others has run out."""
        now = self._clock()
        if now - self._looked_at >= min(_LOOK_SECONDS, self._seconds / 10):
            self._looked_at = now
            if self._others_wait():
                self._since = now
        return now - self._since > self._seconds

    def _others_wait(self) -> bool:
        try:
            return read_wait(self._store, self._attempt) is not None
        except StoreError:  # it is not known whether they wait or come
            return True
