"""How grave an event is: what somebody is to look at now, what is worth a look, and what only tells how it goes.

The level of its line in a task's log, and in what `airflow-elastic run` and `events` write.
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


#: What went wrong whatever follows from it.
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
    ev.DeadlinePassed,
)

#: Ends of attempts that nobody wanted.
_UNWANTED = (Cause.FAILURE, Cause.PREEMPTION, Cause.UNATTENDED)


def severity_of(event: Event, before: RunState | None, state: RunState) -> Severity:
    """ERROR for the end of a run that has failed, WARNING for what was lost and for what is started again.

    Args:
        event: what the journal says.
        before: the state it met; None for the first event.
        state: the state it made.
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
