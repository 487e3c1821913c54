"""Which ranks hold all others up: those whose own part of a step takes much longer than anybody else's.

That more than twice the median is too much is DLRover's rule (`dlrover-run --exclude-straggler`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

from airflow_elastic.spec.status import Progress, RankReport

FACTOR = 2.0

#: What is shorter is noise, whatever it is compared with. Seconds.
LEAST_SECONDS = 0.003

#: Who is slow for so long is told of, and who is not slow for so long is forgotten. Seconds.
LASTING_SECONDS = 10.0


def stragglers(ranks: Iterable[RankReport]) -> tuple[RankReport, ...]:
    """The ranks whose forward pass takes more than FACTOR times the median of all the others'."""
    timed = [rank for rank in ranks if rank.forward_seconds > 0]
    found = []
    for rank in timed:
        others = [other.forward_seconds for other in timed if other is not rank]
        if others and rank.forward_seconds > max(LEAST_SECONDS, FACTOR * statistics.median(others)):
            found.append(rank)
    return tuple(found)


class Lagging:
    """Ranks that are slow for a while, from report to report.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of: tuple[int, int] | None = None  # ranks of another generation are others
        self._steps: tuple[int, ...] = ()
        self._since: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._told: frozenset[int] = frozenset()

    def news(self, progress: Progress) -> frozenset[int] | None:
        """The numbers of those that lag, where these are others than told before; None where nothing is new."""
        steps = tuple(rank.step for rank in progress.ranks)
        of = (progress.attempt, progress.stretches[-1].generation if progress.stretches else 0)
        if of != self._of:
            self._of, self._since, self._last, self._told = of, {}, {}, frozenset()
        # While ranks of another generation start, what those before have said last stands there.
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
