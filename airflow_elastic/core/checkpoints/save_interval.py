"""How often a run with `auto_interval` saves, from the cost of a save and the rate of failures.

A save too many costs its stall; a save too few costs, at the next failure, the steps since the last one. The optimum is
Young's, sqrt(2 * cost * time between failures): J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17 (1974). Daly's higher orders change it by less than the error of the inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.state import Cause

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState

#: The assumption for a new run: a failure every so many seconds. It has the weight of so much observed time.
EXPECTED_SECONDS = 6 * 3600.0

#: The interval until a save has been measured.
FIRST_SECONDS = 60.0

SHORTEST_SECONDS, LONGEST_SECONDS = 10.0, 3600.0


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between two saves, and why."""

    seconds: float
    reason: str


def seconds_between_failures(state: RunState, now: float) -> float:
    """How long the run's workers train from one failure to the next, on average, by its journal."""
    worked = 0.0
    for attempt in state.attempts:
        if attempt.submitted_at is not None:
            worked += max(0.0, (attempt.ended_at or now) - attempt.submitted_at)
    failures = sum(attempt.cause is Cause.FAILURE for attempt in state.attempts)
    return (worked + EXPECTED_SECONDS) / (failures + 1)


def save_interval(
    cost: float, written: float, between_failures: float, longest: float = LONGEST_SECONDS
) -> Interval:
    """The best interval.

    Args:
        cost: seconds that training stands still for a save.
        written: seconds until a save is in storage; saves that would overtake each other are skipped anyway.
        between_failures: seconds from one failure to the next.
        longest: never more than this.
    """
    best = math.sqrt(2.0 * cost * between_failures)
    seconds = min(longest, max(best, SHORTEST_SECONDS, 2.0 * written))
    return Interval(
        seconds,
        f"a save stops training for {cost:.3g} s and is written within {written:.3g} s, "
        f"and a failure is expected every {between_failures / 3600:.3g} h",
    )
