"""How fast ranks are: the typical step time, and each one against it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any


def median_seconds(seconds: Iterable[float | None]) -> float | None:
    """The median of the step times that are known; None if none is."""
    known = [value for value in seconds if value is not None and math.isfinite(value) and value > 0]
    return statistics.median(known) if known else None


def relative(seconds: float | None, median: float | None) -> float | None:
    """A step time in medians: 1.0 is as the median, 2.0 takes twice as long. None if unknown."""
    if seconds is None or median is None or not (math.isfinite(seconds) and seconds > 0 and median > 0):
        return None
    return seconds / median


def recent_paces(document: Mapping[str, Any]) -> list[float]:
    """Seconds per step as a status document has them: of the ranks, and of the newest part of the training.

    The first is the time of a step alone; the second has all that was between the steps, such as saves.
    """
    of_ranks = median_seconds(rank.get("step_seconds") for rank in document.get("ranks", ()))
    found = [] if of_ranks is None else [of_ranks]
    stretches = [one for attempt in document.get("attempts", ()) for one in attempt.get("stretches", ())]
    for stretch in reversed(stretches):
        first, last = stretch.get("first_step_at"), stretch.get("last_step_at")
        done = stretch.get("to_step", 0) - stretch.get("from_step", 0) - 1  # since the end of the first one
        if first is not None and last is not None and last > first and done > 0:
            found.append((last - first) / done)
            break
    return found
