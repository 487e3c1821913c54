"""Where the time of a run went. Every second of its wall time is in exactly one row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_elastic.core.state import Cause, RunState

if TYPE_CHECKING:
    from airflow_elastic.core.state import Attempt
    from airflow_elastic.spec.status import Progress, Stretch

#: The rows, in the order in which they are shown, with their meanings.
ROWS: Mapping[str, str] = {
    "training": "steps that count",
    "repeated": "steps that were lost with a failure and repeated",
    "saving": "the training loop stood still for a checkpoint",
    "restoring": "a checkpoint was loaded",
    "starting": "from a decision to start ranks to their first step, without restoring",
    "ending": "from the last step of an attempt until it was gone",
    "pausing": "waiting before a restart",
    "untold": "attempts of a script that does not report its steps",
    "other": "everything else",
}


def goodput(state: RunState, progress: Progress | None, now: float) -> dict[str, float]:
    """Seconds for each row, and under `wall` their sum: from the run's creation to its end, or to `now`.

    The time between an end and a reopening does not count.
    """
    end = state.ended_at or now
    seconds = dict.fromkeys(ROWS, 0.0)
    stretches = all_stretches(state, progress)
    for i, (_, stretch) in enumerate(stretches):
        kept = _kept_share(state, stretch, [later for _, later in stretches[i + 1 :]])
        seconds["training"] += stretch.stepping_seconds * kept
        seconds["repeated"] += stretch.stepping_seconds * (1 - kept)
        seconds["saving"] += stretch.saving_seconds
        seconds["restoring"] += stretch.restoring_seconds
    for attempt in state.attempts:
        mine = [stretch for owner, stretch in stretches if owner is attempt]
        for name, value in _edges(attempt, mine, end).items():
            seconds[name] += value
    wall = max(0.0, end - state.created_at - state.rested_seconds)
    known = sum(seconds.values())
    if known > wall:  # clocks that differ: the parts are kept in proportion
        seconds = {row: value * wall / known for row, value in seconds.items()}
    seconds["other"] = max(0.0, wall - known)
    return {"wall": wall, **seconds}


def goodput_share(seconds: Mapping[str, float]) -> float:
    """The share of the wall time in steps that count, 0 to 1, of an account by `goodput`."""
    return seconds["training"] / seconds["wall"] if seconds["wall"] else 0.0


def all_stretches(state: RunState, progress: Progress | None) -> list[tuple[Attempt, Stretch]]:
    """All parts of the training with one set of ranks, oldest first, each with its attempt."""
    found = []
    for attempt in state.attempts:
        told = progress if progress and progress.attempt == attempt.number else attempt.progress
        found += [(attempt, stretch) for stretch in (told.stretches if told else ())]
    return found


def _kept_share(state: RunState, stretch: Stretch, later: list[Stretch]) -> float:
    """The share of a stretch's steps that did not have to be repeated."""
    done = stretch.to_step - stretch.from_step
    if done <= 0:
        return 0.0
    limits = [other.from_step for other in later if other.first_step_at is not None or other.from_step]
    if state.ended and state.outcome != "succeeded":
        limits.append(state.saved_step)
    kept = min([stretch.to_step, *limits]) - stretch.from_step
    return max(0.0, min(1.0, kept / done))


def _edges(attempt: Attempt, stretches: list[Stretch], end: float) -> dict[str, float]:
    """The time of an attempt outside of its steps."""
    begun = max(attempt.planned_at, attempt.not_before)
    gone = attempt.gone_at or end
    pausing = max(0.0, min(attempt.not_before, gone) - attempt.planned_at)
    starting, moment = 0.0, begun
    for stretch in stretches:
        if stretch.first_step_at is None:
            break
        # The clock of a rank's machine may be wrong: no step was made before the attempt began, or after it was gone.
        first = min(max(stretch.first_step_at, moment), gone)
        starting += max(0.0, first - moment - stretch.restoring_seconds)
        moment = min(max(stretch.last_step_at or first, first), gone)
    if not stretches and attempt.cause not in (None, Cause.FAILURE):
        # it succeeded without reporting a step: the script worked, but only it knows on what
        return {"pausing": pausing, "untold": max(0.0, gone - begun)}
    complete = bool(stretches) and stretches[-1].first_step_at is not None
    if not complete:  # the newest ranks have not done a step yet
        return {"pausing": pausing, "starting": starting + max(0.0, gone - max(moment, begun))}
    ended = attempt.gone_at is not None
    return {"pausing": pausing, "starting": starting, "ending": max(0.0, gone - moment) if ended else 0.0}
