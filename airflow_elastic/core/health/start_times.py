"""How long a start may take, by the earlier starts of the run.

A start reaches from the start of the ranks to their first step: imports, a restore, compilation, that step itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress, Stretch

#: A start may take so many times as long as the longest one so far. The second number holds if no start had as many
#: ranks: then code may have to be compiled again.
MARGIN, MARGIN_OF_OTHER_SIZES = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class StartLimit:
    """When a start counts as a hang.

    Attributes:
        seconds: the longest time without a step and without reading more of the checkpoint.
        longest: seconds of the longest earlier start that this follows from. None if there is none: then it is
            `health.start_seconds`.
    """

    seconds: float
    longest: float | None = None


def start_limit(state: RunState, progress: Progress) -> StartLimit:
    """The limit for the current start.

    Args:
        state: from the journal. Starts before the run was last reopened do not count: their cause may have been fixed.
        progress: newest report of the current attempt; its last stretch is the current start.
    """
    health, (*before, starting) = state.spec.health, progress.stretches
    past = [a.progress for a in state.lives if a is not state.attempt and a.progress is not None]
    known = [*before, *(stretch for told in past for stretch in told.stretches)]
    alike = [one for one in known if one.world_size == starting.world_size]
    for stretches, margin in ((alike, MARGIN), (known, MARGIN_OF_OTHER_SIZES)):
        if longest := max(_seconds(stretches), default=0.0):
            seconds = margin * longest + health.no_progress_seconds
            return StartLimit(min(seconds, health.start_seconds), longest)
    return StartLimit(health.start_seconds)


def _seconds(stretches: list[Stretch]) -> Iterator[float]:
    for stretch in stretches:
        if stretch.first_step_at is not None:
            yield max(0.0, stretch.first_step_at - stretch.started_at)
