"""When a training ends: the remaining steps at the pace of the recent ones, with its spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Shares of the recent paces below and above which they do not count for the spread.
_LOW, _HIGH = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the last step: at the median pace, and at the fast and the slow ones of the recent paces."""

    seconds: float
    low: float
    high: float


def eta(remaining: int, paces: Sequence[float]) -> Eta | None:
    """How long the remaining steps take; None if nothing is known about the pace.

    Args:
        remaining: steps that are left.
        paces: recent seconds per step, each of a part of the time. What is not a finite number above zero is left out.
    """
    known = sorted(pace for pace in paces if math.isfinite(pace) and pace > 0)
    if remaining <= 0:
        return Eta(0.0, 0.0, 0.0)
    if not known:
        return None
    of = (statistics.median(known), _quantile(known, _LOW), _quantile(known, _HIGH))
    seconds, low, high = (remaining * pace for pace in of)
    return Eta(seconds, low, high) if math.isfinite(high) else None


def paces(times: Sequence[float], steps: Sequence[float]) -> list[float]:
    """Seconds per step between neighbours of a series; pauses and repeated steps are left out.

    Args:
        times: epoch seconds, ascending.
        steps: the newest step at each of the times.
    """
    pairs = list(zip(times, steps, strict=True))
    found = []
    for (at, step), (later, further) in pairwise(pairs):
        # Of the shortest times that a float can have, a part is 0.
        if further > step and (pace := (later - at) / (further - step)) > 0:
            found.append(pace)
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
