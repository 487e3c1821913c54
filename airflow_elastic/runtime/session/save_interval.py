"""How often a run saves if it chooses the interval itself."""

from __future__ import annotations

import logging

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.core.checkpoints.save_interval import FIRST_SECONDS, LONGEST_SECONDS, save_interval

log = logging.getLogger(__name__)

_WORTH_LOGGING = 1.25


class SaveInterval:
    """The interval between two saves, computed from the measured cost of a save.

    Args:
        between_failures: mean seconds between two failures of the run.
        longest: the longest interval, in seconds. Default: `LONGEST_SECONDS`.
        words: the numbers in this rank's page, where the agent reports how long it takes to write a save.
        logs: whether this rank logs the interval.

    Attributes:
        seconds: the interval.
    """

    def __init__(
        self, between_failures: float, longest: float | None, words: memoryview[float], *, logs: bool
    ) -> None:
        self._between, self._longest, self._words = between_failures, longest or LONGEST_SECONDS, words
        self._logged_seconds = 0.0 if logs else None
        self._cost: float | None = None
        self.seconds = min(FIRST_SECONDS, self._longest)

    def measured(self, cost: float) -> None:
        """Note that a save has stopped training for `cost` seconds, and compute the interval again.

        The estimate falls to a faster save at once, and rises halfway to a slower one: the first save may be slow.
        """
        self._cost = cost if self._cost is None else min(cost, 0.5 * (self._cost + cost))
        interval = save_interval(self._cost, self._words[shared_page.WRITING], self._between, self._longest)
        self.seconds = interval.seconds
        if self._logged_seconds is None:
            return
        ratio = interval.seconds / self._logged_seconds if self._logged_seconds else 0.0
        if not 1 / _WORTH_LOGGING < ratio < _WORTH_LOGGING:
            self._logged_seconds = interval.seconds
            log.warning("saving every %.0f s from now on: %s", interval.seconds, interval.reason)
