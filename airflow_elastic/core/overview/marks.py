"""Events as marks on a chart: what kind each is, and which ones to leave out where there are too many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.core.state import Cause, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.events import Event

#: The most marks of a run.
MOST_MARKS = 500

_KINDS: Mapping[type, str] = {
    ev.RunCreated: "run",
    ev.RunReopened: "attempt",
    ev.OwnerChanged: "run",
    ev.RunMoved: "run",
    ev.AttemptSubmitted: "attempt",
    ev.AttemptGone: "attempt",
    ev.BackoffElapsed: "attempt",
    ev.RejoinRefused: "attempt",
    ev.Regrouped: "scale",
    ev.SubmitRefusedByEngine: "failure",
    ev.SubmitHeldByEngine: "waiting",
    ev.CheckpointCommitted: "checkpoint",
    ev.PhaseCompleted: "phase",
    ev.SaveFailed: "failure",
    ev.SaveLeftOut: "checkpoint",
    ev.CheckpointQuarantined: "failure",
    ev.PruneRefused: "failure",
    ev.CopyRefused: "failure",
    ev.RanksFailed: "failure",
    ev.Stalled: "failure",
    ev.ScaleRequested: "scale",
    ev.ScaleDecided: "scale",
    ev.Scaled: "scale",
    ev.ScaleFailed: "failure",
    ev.StandbyAsked: "scale",
    ev.Recovered: "attempt",
    ev.ResumeRequested: "request",
    ev.ResumeRefused: "failure",
    ev.NewerSetAside: "checkpoint",
    ev.MachineExcluded: "request",
    ev.SaveRequested: "request",
    ev.SaveOrdered: "request",
    ev.StopRequested: "request",
    ev.DeadlinePassed: "end",
    ev.RunEnded: "end",
}

#: Left out first, in this order, where there are too many marks.
_LEAST = ("checkpoint", "request", "waiting", "attempt", "phase", "scale", "failure")


def kind_of(event: Event, state: RunState) -> str:
    """The kind of an event: `run`, `attempt`, `failure`, `scale`, `checkpoint`, `waiting`, `request`, `phase`, `end`.

    Args:
        event: of the journal.
        state: the state after it.
    """
    if isinstance(event, ev.WorkersEnded):
        cause = next((one.cause for one in state.attempts if one.number == event.attempt), None)
        return "failure" if cause in (Cause.FAILURE, Cause.PREEMPTION, Cause.UNATTENDED) else "attempt"
    return _KINDS.get(type(event), "request")


def thinned(marks: Sequence[Mapping[str, Any]], most: int = MOST_MARKS) -> list[Mapping[str, Any]]:
    """At most `most` marks, in their order. Checkpoints are left out first, evenly; then less weighty kinds."""
    kept = list(marks)
    for kind in (*_LEAST, None):
        over = len(kept) - most
        if over <= 0:
            break
        places = [place for place, mark in enumerate(kept) if kind is None or mark["kind"] == kind]
        room = max(0, len(places) - over)
        stay = {places[index * len(places) // room] for index in range(room)}
        out = set(places) - stay
        kept = [mark for place, mark in enumerate(kept) if place not in out]
    return kept
