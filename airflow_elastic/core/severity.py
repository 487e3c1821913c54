"""How severe an event is: an error that needs a person, a warning, or information.

It is the level of its line in a task's log, and in the output of `airflow-elastic run` and `events`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_elastic.core.state import Cause
from airflow_elastic.spec import events as ev

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event


class Severity(StrEnum):
    """The name of a log level."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


#: Events that are warnings in any case.
_WRONG = (
    ev.SaveFailed,
    ev.SaveLeftOut,
    ev.PruneRefused,
    ev.CheckpointQuarantined,
    ev.CopyRefused,
    ev.RanksFailed,
    ev.RejoinRefused,
    ev.SubmitRefusedByEngine,
    ev.Stalled,
    ev.ScaleFailed,
    ev.ResumeRefused,
    ev.DeadlinePassed,
)

#: Unwanted ends of attempts.
_UNWANTED = (Cause.FAILURE, Cause.PREEMPTION, Cause.UNATTENDED)


def severity_of(event: Event, before: RunState | None, state: RunState) -> Severity:
    """ERROR for the end of a failed run; WARNING for losses and for restarts.

    Args:
        event: of the journal.
        before: the state before it; None for the first event.
        state: the state after it.
    """
    match event:
        case ev.RunEnded():
            return Severity.ERROR if event.outcome == "failed" else Severity.INFO
        case ev.WorkersEnded():
            return _of_end(state.attempts[event.attempt - 1].cause)
        case ev.AttemptGone():  # what follows is a restart
            return _of_end(before.attempt.cause if before is not None else None)
        case _:
            return Severity.WARNING if isinstance(event, _WRONG) else Severity.INFO


def _of_end(cause: Cause | None) -> Severity:
    return Severity.WARNING if cause in _UNWANTED else Severity.INFO
