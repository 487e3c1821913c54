"""Whether anybody still carries the run on: a run that nobody would end must not hold its machines for ever.

Airflow tells nobody that a task was marked failed while no triggerer holds its trigger. So the workers look for
themselves: whoever carries a run on renews its status document every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_elastic.adapters.records.checkpoint_parts import check_same_run
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError

#: Looked for so often within the time that a controller may be away, but not more often than once a second.
_LOOKS = 30


class ControllerLease:
    """Sees whether the status document changes. Only the reader's own clock counts, so clocks need not agree.

    Args:
        store: where the run lies.
        seconds: how long a controller may be away.
        clock: seconds, monotonic.
    """

    def __init__(self, store: Store, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._seconds, self._clock = store, seconds, clock
        self._seen: bytes | None = None
        self._seen_at = self._looked_at = clock()

    def missed(self, run: str) -> float | None:
        """Seconds since a controller was last seen, once they are too many; None until then.

        Where storage is out of reach, nobody can be seen, nor could anything be saved: the time begins anew.

        Args:
            run: which one is to be carried on, as `check_same_run` takes it: whoever carries on another is not of ours.

        Raises:
            StoreError: storage is out of reach.
            Superseded: another run has begun where this one lay.
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
