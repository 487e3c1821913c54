"""What a run remembers for its scaling policy: folded from the same events as its state, so a replay gives it again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_elastic.spec import events as ev
from airflow_elastic.spec.events import Event
from airflow_elastic.spec.scaling.events import ScaleDecided
from airflow_elastic.spec.scaling.observation import FALLBACK

#: `by` of the scale steps that the run's own policy decides.
POLICY = "the scaling policy"

#: A request by one of these is not a person's: a schedule, an autoscaler outside the run, its own policy.
_NOBODY = (ev.SCHEDULE, ev.AUTOSCALER, POLICY)


@dataclass(frozen=True, slots=True)
class ScaleMemory:
    """Times are epoch seconds; None: it has not happened.

    Attributes:
        decided: the newest decision that differs from the one before it.
        steps: how many of its decisions were to change the number of workers.
        changed_at: when the number of workers last changed, or an attempt was submitted.
        failed_at: when an attempt or a scale step last failed.
        asked_at: when a person last asked for a number of workers.
        failed_sizes: the numbers of workers that scale steps did not reach, newest last.
    """

    decided: ScaleDecided | None = None
    steps: int = 0
    changed_at: float | None = None
    failed_at: float | None = None
    asked_at: float | None = None
    failed_sizes: tuple[int, ...] = ()

    def after(self, event: Event) -> ScaleMemory:
        """What is remembered after one event that has changed the run."""
        match event:
            case ScaleDecided():
                told = replace(self, decided=event, steps=self.steps + event.decision.acts)
                return told._failed(event.at, event.seen.workers) if event.decision.rule == FALLBACK else told
            case ev.ScaleRequested() if event.by not in _NOBODY:
                return replace(self, asked_at=event.at)
            case ev.ScaleFailed():
                return self._failed(event.at, event.workers)
            case ev.Scaled():
                others = tuple(size for size in self.failed_sizes if size != event.workers)
                return replace(self, changed_at=event.at, failed_sizes=others)
            case ev.AttemptSubmitted() | ev.Regrouped():
                return replace(self, changed_at=event.at)
            case ev.Stalled() | ev.SubmitRefusedByEngine() | ev.RanksFailed():
                return replace(self, failed_at=event.at)
            case ev.WorkersEnded() if event.job.failed:
                return replace(self, failed_at=event.at)
            case _:
                return self

    def _failed(self, at: float, size: int) -> ScaleMemory:
        others = tuple(one for one in self.failed_sizes if one != size)
        return replace(self, failed_at=at, failed_sizes=(*others, size))


#: Of a run that has just begun.
NOTHING = ScaleMemory()
