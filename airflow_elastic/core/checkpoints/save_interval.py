"""How often a run saves that is left to find that out by itself: from what a save costs, and how often it fails.

A save too many costs its stall; a save too few costs, at the next failure, the steps since the last one. The optimum is
Young's, sqrt(2 * cost * time between failures): J. W. Young, "A first order approximation to the optimum checkpoint
interval", Communications of the ACM 17 (1974). Daly's higher orders differ from it by less than what is known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.state import Cause

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState

#: Believed of a run that nothing is known of: a failure every so many seconds. Counts as much as that time, observed.
EXPECTED_SECONDS = 6 * 3600.0

#: Until a save was measured.
FIRST_SECONDS = 60.0

SHORTEST_SECONDS, LONGEST_SECONDS = 10.0, 3600.0


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds between two saves, and why."""

    seconds: float
    reason: str


def seconds_between_failures(state: RunState, now: float) -> float:
    """How long the run's workers are at work from one failure to the next, as far as its journal tells."""
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
        written: seconds until it is in storage; saves that would overtake each other are left out anyway.
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
