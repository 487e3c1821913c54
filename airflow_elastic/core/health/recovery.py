"""How long it took from the last step of an attempt to the first step of the next one, and what took it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from airflow_elastic.core.state import Attempt, Phase, RunState
from airflow_elastic.spec.events import Recovered
from airflow_elastic.spec.status import Progress
from airflow_elastic.spec.training.recovery import Recovery

#: The parts, in the order in which they happen, in words that a duration follows.
PARTS: Mapping[str, str] = {
    "noticing": "noticed after",
    "deciding": "decided in",
    "meeting": "met in",
    "restoring": "restored in",
    "starting": "started in",
}


def recovered(state: RunState, progress: Progress | None, now: float) -> tuple[Recovered, ...]:
    """The event that the live attempt has done its first step; () if that is not so, or is known.

    Args:
        state: of the run.
        progress: the newest report.
        now: epoch seconds.
    """
    attempt, following = state.attempt, len(state.lives) > 1
    if not following or attempt.phase is not Phase.LIVE or attempt.recovery is not None:
        return ()
    if progress is None or progress.attempt != attempt.number:
        return ()
    found = _recovery(state.attempts[-2], attempt, progress)
    if found is None:
        return ()
    first = progress.stretches[0]
    ranks = first.world_size if first.stayed else None
    return (Recovered(now, attempt.number, found, first.stayed, ranks),)


def _recovery(before: Attempt, attempt: Attempt, progress: Progress) -> Recovery | None:
    stretch = progress.stretches[0] if progress.stretches else None
    if stretch is None or stretch.first_step_at is None or before.ended_at is None:
        return None
    stepped = max((at or 0.0 for at in _last_steps(before)), default=0.0) or before.ended_at
    # Machines have clocks of their own, so no part may be negative.
    moments = [stepped]
    for moment in (before.ended_at, attempt.submitted_at, stretch.started_at, stretch.first_step_at):
        moments.append(max(moments[-1], moment or 0.0))
    noticing, deciding, meeting, rest = (later - earlier for earlier, later in itertools.pairwise(moments))
    restoring = min(stretch.restoring_seconds, rest)
    return Recovery(noticing, deciding, meeting, restoring, rest - restoring)


def _last_steps(attempt: Attempt) -> tuple[float | None, ...]:
    return tuple(one.last_step_at for one in attempt.progress.stretches) if attempt.progress else ()


def measured_from(before: Attempt) -> str:
    """What the time of a recovery is measured from: `the last step`, or the end of an attempt without a step."""
    return start_words(before.number, _last_steps(before))


def start_words(number: int, last_steps: Iterable[float | None]) -> str:
    """The same by the number of the attempt before, and when its stretches did their last steps."""
    return "the last step" if any(last_steps) else f"attempt {number} ended"


def words(recovery: Recovery, start: str) -> str:
    """The parts in words, without those that took no time. `start`: what the time is measured from."""
    told = [f"{PARTS[name]} {value:.2g} s" for name, value in recovery.parts().items() if value >= 0.005]
    return f"{recovery.seconds:.2g} s after {start}" + (f": {', '.join(told)}" if told else "")


def stayed_words(stayed: int | None, ranks: int | None) -> str:
    """`; 1 of 2 ranks stayed in its process`, to be appended to these words; empty if no rank is known to have."""
    processes = "its process" if stayed == 1 else "their processes"
    return f"; {stayed} of {ranks} ranks stayed in {processes}" if stayed and ranks else ""
