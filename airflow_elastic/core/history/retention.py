"""How wide the buckets of time are: the older a bucket is, the wider.

The newest 2 hours keep the best resolution, the 2 days before them one bucket a minute. What is older shares at most
2,000 buckets, whose width doubles as the run gets longer. Each width divides the next one, so buckets are only ever
joined. It does not matter how often that is done on the way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The widths of one kind of series. Times are seconds.

    Attributes:
        fine: widths of the newest buckets; the first one with which they are at most `fine_buckets`, else the last.
        fine_seconds: how long they are kept so.
        fine_buckets: see `fine`.
        minutes_seconds: how long buckets of one minute are kept, as an age.
        old_buckets: the most older buckets.
    """

    fine: tuple[float, ...] = (1.0, 2.0, 4.0)
    fine_seconds: float = 2 * 3600.0
    fine_buckets: int = 1800
    minutes_seconds: float = 2 * 86400.0
    old_buckets: int = 2000


#: Of series, and of matrices: a matrix has at most 120 + 120 buckets, and one more at each border.
SERIES = Retention()
MATRIX = Retention(fine=(10.0, 20.0, 60.0), fine_buckets=120, minutes_seconds=2 * 3600.0, old_buckets=120)


@dataclass(frozen=True, slots=True)
class Plan:
    """The buckets of a history between two times.

    Attributes:
        fine: width of the newest buckets.
        old: width of the oldest ones.
        fine_from: where the newest buckets begin.
        minutes_from: where those of one minute begin.
    """

    fine: float
    old: float
    fine_from: float
    minutes_from: float

    def bucket(self, t: float) -> float:
        """The start of the bucket that a time belongs to."""
        if t >= self.fine_from:
            return math.floor(t / self.fine) * self.fine
        if t >= self.minutes_from:
            return math.floor(t / MINUTE) * MINUTE
        return math.floor(t / self.old) * self.old


def plan(first: float, newest: float, keep: Retention = SERIES) -> Plan:
    """The buckets for a history from `first` to `newest` (epoch seconds).

    The first bucket may begin before `first`. It counts whole, so the plan for joined buckets is the same again.
    """
    fine_from = _floor(newest - keep.fine_seconds, MINUTE)

    def fits(width: float) -> bool:
        return newest - max(_floor(first, width), fine_from) <= width * keep.fine_buckets

    fine = next(filter(fits, keep.fine), keep.fine[-1])
    old, age = MINUTE, newest - max(keep.minutes_seconds, keep.fine_seconds)
    while (age - _floor(first, old)) / old > keep.old_buckets:
        old *= 2
    return Plan(fine, old, fine_from, min(fine_from, _floor(age, MINUTE)))


def _floor(t: float, width: float) -> float:
    return math.floor(t / width) * width
