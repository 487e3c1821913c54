"""Stragglers: ranks that hold all others up, because their own part of a step takes much longer.

The limit of twice the median is that of DLRover (`dlrover-run --exclude-straggler`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

from airflow_elastic.spec.status import Progress, RankReport

FACTOR = 2.0

#: Less than this is noise (seconds), and less than this share of a step is not worth a person's time.
LEAST_SECONDS, LEAST_SHARE = 0.005, 0.1

#: Seconds for which a rank must be slow before it is reported, and must not be slow before it is forgotten.
LASTING_SECONDS = 10.0


def stragglers(ranks: Iterable[RankReport]) -> tuple[RankReport, ...]:
    """The ranks whose forward pass takes more than FACTOR times the median of all other ranks, and much of a step."""
    timed = [rank for rank in ranks if rank.forward_seconds > 0]
    found = []
    for rank in timed:
        others = [other.forward_seconds for other in timed if other is not rank]
        usual = statistics.median(others) if others else math.inf
        longer = rank.forward_seconds - usual
        worth = max(LEAST_SECONDS, LEAST_SHARE * rank.step_seconds)
        if rank.forward_seconds > FACTOR * usual and longer > worth:
            found.append(rank)
    return tuple(found)


class StragglerTracker:
    """Finds ranks that stay slow, from report to report.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: tuple[int, int] | None = None  # a new generation has other ranks
        self._steps: tuple[int, ...] = ()
        self._since: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._told: frozenset[int] = frozenset()

    @property
    def reported(self) -> frozenset[int]:
        """The numbers of the stragglers, as last reported."""
        return self._told

    def news(self, progress: Progress) -> frozenset[int] | None:
        """The numbers of the stragglers, if they have changed since the last report; else None."""
        steps = tuple(rank.step for rank in progress.ranks)
        of = (progress.attempt, progress.stretches[-1].generation if progress.stretches else 0)
        if of != self._of:
            self._of, self._since, self._last, self._told = of, {}, {}, frozenset()
        # While the ranks of a new generation start, the report still has the last values of the former ones.
        elif self._steps == steps:
            return None
        self._steps = steps
        now = self._clock()
        slow = {rank.rank for rank in stragglers(progress.ranks)}
        self._last |= dict.fromkeys(slow, now)
        self._last = {rank: at for rank, at in self._last.items() if now - at < LASTING_SECONDS}
        self._since = {rank: self._since.get(rank, now) for rank in self._last}
        lasting = frozenset(
            rank
            for rank, at in self._since.items()
            if now - at >= LASTING_SECONDS and (rank in slow or rank in self._told)
        )
        if lasting == self._told:
            return None
        self._told = lasting
        return lasting
