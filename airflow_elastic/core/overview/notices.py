"""Notices: events that somebody may want to hear of while a run goes on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.overview.health import troubles
from airflow_elastic.core.state import Cause
from airflow_elastic.spec import events as ev

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event

#: Signs of bad health count after so long: many pass by themselves.
LASTING_SECONDS = 10.0


class Kind(StrEnum):
    """The kinds of notices: `on_restart` and so on are named after them."""

    RESTART = "restart"
    SCALE = "scale"
    CHECKPOINT = "checkpoint"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Notice:
    """One event that is reported.

    Attributes:
        kind: what has happened.
        text: what has happened, in a sentence.
        at: epoch seconds.
        attempt: number of the attempt.
        step: the newest step that is known.
        workers: of the attempt.
    """

    kind: Kind
    text: str
    at: float
    attempt: int
    step: int
    workers: int

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "kind": str(self.kind)}


#: Ends of attempts after which the next attempt is a restart.
_LOSSES = (Cause.FAILURE, Cause.PREEMPTION, Cause.UNATTENDED)


def notice(event: Event, before: RunState | None, state: RunState) -> Notice | None:
    """The notice about an event of the journal; None for most events.

    Args:
        event: of the journal.
        before: the state before it; None for the first event.
        state: the state after it.
    """
    if before is None or before == state:
        return None
    kind = _kind(event, state)
    if kind is None:
        return None
    text = sentence(event, before, state) or str(kind)
    if kind is Kind.RESTART:
        failure = state.attempts[-2].failure
        text = f"{failure.reason if failure else state.attempts[-2].cause}: {text}"
    step = event.step if isinstance(event, ev.CheckpointCommitted) else state.newest_step(None)
    return Notice(kind, text, event.at, state.attempt.number, step, state.attempt.workers)


def _kind(event: Event, state: RunState) -> Kind | None:
    match event:
        case ev.CheckpointCommitted():
            return Kind.CHECKPOINT
        case ev.Scaled() | ev.Regrouped():
            return Kind.SCALE
        case ev.AttemptSubmitted() if len(state.attempts) > 1:
            cause = state.attempts[-2].cause
            return Kind.RESTART if cause in _LOSSES else Kind.SCALE if cause is Cause.SCALE_STEP else None
    return None


class Watch:
    """Finds out when a run becomes unhealthy: once for each time that it is.

    Args:
        reported: since when it was unhealthy, as an earlier watch has reported; None if it was well. Epoch seconds.
    """

    def __init__(self, reported: float | None = None) -> None:
        self.reported = reported
        self._since: float | None = None

    def look(self, document: Mapping[str, Any], now: float) -> str | None:
        """What is wrong, in words, if it must be reported now.

        Args:
            document: the status document.
            now: epoch seconds.
        """
        found = "; ".join(troubles(document, now))
        if not found:
            self._since = self.reported = None
            return None
        self._since = now if self._since is None else self._since
        if self.reported is not None or now - self._since < LASTING_SECONDS:
            return None
        self.reported = self._since
        return found
