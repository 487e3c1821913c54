"""Whether a controller still drives the run: a run without one would never end, and keep its machines for ever.

If a task is marked failed while no triggerer runs its trigger, Airflow calls no code of the task. So the workers check:
a controller that drives a run renews its status document every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_elastic.adapters.records.checkpoint_parts import check_same_run
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError

#: How many checks to make in the time that a controller may be away. At most one a second.
_LOOKS = 30


class ControllerLease:
    """Observes whether the status document changes. Uses only the clock of this machine, so clocks need not agree.

    Args:
        store: where the run is stored.
        seconds: how long a controller may be away.
        clock: returns seconds, monotonic.
    """

    def __init__(self, store: Store, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._seconds, self._clock = store, seconds, clock
        self._seen: bytes | None = None
        self._seen_at = self._looked_at = clock()

    def missed(self, run: str) -> float | None:
        """Seconds since a controller was last seen, once it has been away too long; None until then.

        If storage is out of reach, no controller can be seen, and no worker could save. Then the time begins again.

        Args:
            run: identity of the run, for `check_same_run`. The controller of another run does not count.

        Raises:
            StoreError: storage is out of reach.
            Superseded: another run has begun at the same URI.
        """
        now = self._clock()
        if now - self._looked_at < max(1.0, self._seconds / _LOOKS):
            return None
        self._looked_at = now
        try:
            check_same_run(self._store, run)
            status = self._store.get(layout.STATUS)
        except StoreError:
            self._seen_at = now
            raise
        if status != self._seen:
            self._seen, self._seen_at = status, now
        return now - self._seen_at if now - self._seen_at >= self._seconds else None
