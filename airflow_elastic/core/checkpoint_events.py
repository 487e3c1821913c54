"""What events about checkpoints change in the state of a run. Pure."""

from __future__ import annotations

from dataclasses import replace

from airflow_elastic.core.state import Checkpoint, CheckpointProblem, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout

#: Events that still count when the attempt is over: its agents may report them last.
LATE = (
    ev.CheckpointCommitted,
    ev.CheckpointQuarantined,
    ev.SaveFailed,
    ev.PruneRefused,
    ev.CopyRefused,
    ev.NewerSetAside,
    ev.ResumeRefused,
)


def committed(state: RunState, event: ev.CheckpointCommitted) -> RunState:
    """A checkpoint exists: it is the newest, unless a newer one is known."""
    if state.checkpoint is not None and event.step <= state.checkpoint.step:
        return state
    if event.attempt < state.resumed_by:  # seen before it was set aside
        return state
    newest, attempts = Checkpoint(event.step, event.attempt, event.key, event.at), state.attempts
    # Its report may be lost with its workers. If it shares a job, the agents of that job may have written it.
    if event.attempt == state.attempt.number and state.attempt.home is None:
        attempts = (*attempts[:-1], replace(state.attempt, saved_at=event.step))
    passed = state.unpruned is not None and event.step > state.unpruned.step  # its own step may be seen later
    return replace(  # at once: of all events this one is the most frequent, and a state has many fields
        state,
        attempts=attempts,
        unpruned=None if passed else state.unpruned,
        checkpoint=newest,
        checkpoints=state.checkpoints + 1,
        damaged=state.damaged - {event.step},
        unsaved=None,
    )


def quarantined(state: RunState, event: ev.CheckpointQuarantined) -> RunState:
    """A damaged checkpoint was set aside: the one before counts."""
    newest = state.checkpoint
    if event.step in state.damaged:
        return state
    state = replace(state, damaged=state.damaged | {event.step})
    if event.attempt == state.attempt.number:
        state = state.with_attempt(from_step=event.newest)
    if newest is None or newest.step != event.step:  # of several the newest is reported first
        return state
    before = Checkpoint(event.newest, newest.attempt, layout.manifest(event.newest), event.at)
    return replace(state, checkpoint=before)


def copy_refused(state: RunState, event: ev.CopyRefused) -> RunState:
    """A worker did not use its copy of a checkpoint."""
    if event.newest is not None and event.attempt == state.attempt.number:
        state = state.with_attempt(from_step=event.newest)
    return replace(state, bad_copy=CheckpointProblem(event.step, event.worker, event.reason, event.attempt))


def newer_set_aside(state: RunState, event: ev.NewerSetAside) -> RunState:
    """The chosen checkpoint is the newest now, and the run goes on from there."""
    if state.resume_step != event.step:
        return state
    wrote = state.checkpoint.attempt if state.checkpoint else event.attempt
    chosen = Checkpoint(event.step, wrote, layout.manifest(event.step), event.at)
    return replace(
        state,
        resume_step=None,
        resumed_by=event.attempt,
        checkpoint=chosen,
        phases=event.phases,
        unsaved=None,
        left_out=None,
        unpruned=None,
    )
