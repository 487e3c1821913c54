"""How long a start may take: what a run has learnt from the starts that it has had.

A start reaches from the start of the ranks to their first step: imports, a restore, compilation, that step itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress, Stretch

#: So many times the longest one so far a start may take; where none so far was of that many ranks, for which code may
#: have to be compiled anew, so many times.
MARGIN, MARGIN_OF_OTHER_SIZES = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class StartLimit:
    """When a start counts as a hang.

    Attributes:
        seconds: without a step, and without more of the checkpoint, for so long.
        longest: of the starts that this follows from, seconds; None where there are none, and `health.start_seconds`
            holds.
    """

    seconds: float
    longest: float | None = None


def start_limit(state: RunState, progress: Progress) -> StartLimit:
    """The limit of the start that goes on.

    Args:
        state: from the journal. What came before the run was last reopened does not count: it may have been mended.
        progress: newest report of the current attempt; its last stretch is the one that starts.
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
