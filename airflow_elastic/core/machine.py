"""The state machine of a run: events in, actions out, nothing else.

`evolve` folds one event into the state; `due` returns the actions that are due in a state. They depend on the state
alone, so a controller may die between any two lines: its successor replays the journal and gets the same actions. Some
events change nothing: duplicates, late ones, or events of a former attempt. They leave the state equal, and are never
journaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_elastic.core import checkpoint_events
from airflow_elastic.core.health.classify import classify, not_in_place, replaced
from airflow_elastic.core.health.deadlines import hang
from airflow_elastic.core.phases import with_completed
from airflow_elastic.core.restart import End, Restart, decide, may_rejoin, may_wait
from airflow_elastic.core.scale_memory import POLICY
from airflow_elastic.core.state import (
    Attempt,
    Cause,
    CheckpointProblem,
    Ending,
    Failure,
    FailureKind,
    LeftOut,
    Phase,
    RunState,
    Unpruned,
)
from airflow_elastic.spec import actions as act
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Action, Delete, Finish, OrderSave, Pause, Rejoin, Scale, Submit
from airflow_elastic.spec.events import Event

#: Causes of an end that are not failures, so that fewer restarts would not avoid them.
_CAUSES = {FailureKind.PREEMPTED: Cause.PREEMPTION, FailureKind.UNATTENDED: Cause.UNATTENDED}


def replay(events: Iterable[Event]) -> RunState | None:
    """The state after all events, or None where there are none."""
    state: RunState | None = None
    for event in events:
        state = create(event) if state is None else evolve(state, event)
    return state


def create(event: Event) -> RunState:
    """The state of a run that has just been created. Raises ValueError for any other first event."""
    if not isinstance(event, ev.RunCreated):
        raise ValueError(f"a journal begins with RunCreated, not with {type(event).__name__}")
    count = event.spec.workers.count
    return RunState(
        spec=event.spec,
        created_at=event.at,
        opened_at=event.at,
        scales_in_place=event.scales_in_place,
        owner=event.owner,
        task=event.task,
        origin=event.origin,
        proposals=event.proposals,
        target=count,
        attempts=(Attempt(number=1, workers=count, phase=Phase.SUBMITTING, planned_at=event.at),),
    )


def due(state: RunState) -> tuple[Action, ...]:
    """The actions that are due now, in this order. Empty: wait for something to happen."""
    if state.ended:
        return ()
    attempt = state.attempt
    match attempt.phase:
        case Phase.SUBMITTING:
            if state.resume_step is not None:
                return (act.SetNewerAside(attempt.number, state.resume_step),)
            if attempt.home is None:
                return (Submit(attempt.number, attempt.workers),)
            return (Rejoin(attempt.number, attempt.replaces),)
        case Phase.LIVE:
            scale = (Scale(attempt.number, state.target),) if attempt.workers != state.target else ()
            return (*scale, *(OrderSave(attempt.number, request) for request in state.saves))
        case Phase.ENDING:
            return (Delete(attempt.number, _grace(state)),)
        case Phase.PAUSED:
            return (Pause(attempt.number, attempt.not_before),)
        case Phase.GONE:
            if state.resume_step is not None:  # for the attempt that may follow one day
                return (act.SetNewerAside(attempt.number + 1, state.resume_step),)
            return (Finish(state.outcome or "failed", state.reason or "unknown"),)


def evolve(state: RunState, event: Event) -> RunState:
    """The state after one event; an equal state if the event says nothing new."""
    after = _evolve(state, event)
    if state.spec.scaling_policy is None or after == state:
        return after
    return replace(after, scaling=state.scaling.after(event))


def _evolve(state: RunState, event: Event) -> RunState:
    if isinstance(event, ev.RunReopened):
        return _reopen(state, event)
    if isinstance(event, ev.OwnerChanged):
        return replace(state, owner=event.owner, task=event.task)
    if isinstance(event, ev.RunMoved):
        return _moved(state, event)
    if state.ended:
        return state
    stale = getattr(event, "attempt", state.attempt.number) != state.attempt.number
    if stale and not isinstance(event, checkpoint_events.LATE):
        return state
    match event:
        case ev.AttemptSubmitted():
            return _submitted(state, event)
        case ev.SubmitRefusedByEngine():
            return _refused(state, event)
        case ev.SubmitHeldByEngine():
            return _held(state, event.reason)
        case ev.CheckpointCommitted():
            return checkpoint_events.committed(state, event)
        case ev.PhaseCompleted():
            return with_completed(state, event)
        case ev.SaveFailed():
            return replace(
                state, unsaved=CheckpointProblem(event.step, event.worker, event.reason, event.attempt)
            )
        case ev.SaveLeftOut():
            return replace(state, left_out=LeftOut(event.step, event.reason, event.attempt))
        case ev.PruneRefused():
            return replace(state, unpruned=Unpruned(event.step, event.reason))
        case ev.CheckpointQuarantined():
            return checkpoint_events.quarantined(state, event)
        case ev.CopyRefused():
            return checkpoint_events.copy_refused(state, event)
        case ev.RanksFailed():
            return _ranks_failed(state, event)
        case ev.RejoinRefused():
            return _rejoin_refused(state, event)
        case ev.WorkersEnded():
            return _workers_ended(state, event)
        case ev.Stalled():
            return _stalled(state, event)
        case ev.AttemptGone():
            return _gone(state, event)
        case ev.BackoffElapsed():
            paused = state.attempt.phase is Phase.PAUSED
            return state.with_attempt(phase=Phase.SUBMITTING) if paused else state
        case ev.ScaleRequested():
            return _scale_requested(state, event)
        case ev.ScaleDecided():
            return _scale_decided(state, event)
        case ev.Scaled():
            live = state.attempt.phase is Phase.LIVE
            return state.with_attempt(workers=event.workers, members=None) if live else state
        case ev.Regrouped():
            return _regrouped(state, event)
        case ev.Recovered():
            first = state.attempt.recovery is None
            return state.with_attempt(recovery=event.recovery) if first else state
        case ev.StandbyAsked():
            asked = state.attempt.standby
            return state.with_attempt(standby=(*asked, *(one for one in event.workers if one not in asked)))
        case ev.ScaleFailed():
            live = state.attempt.phase is Phase.LIVE
            return _end_attempt(state, Cause.SCALE_STEP, event.at) if live else state
        case ev.SaveRequested():
            wanted = state.attempt.phase is Phase.LIVE and event.request not in state.saves
            return replace(state, saves=(*state.saves, event.request)) if wanted else state
        case ev.SaveOrdered():
            return replace(state, saves=tuple(save for save in state.saves if save != event.request))
        case ev.ResumeRequested():
            return _resume_requested(state, event)
        case ev.NewerSetAside():
            return checkpoint_events.newer_set_aside(state, event)
        case ev.ResumeRefused():
            return replace(state, resume_step=None)
        case ev.MachineExcluded():
            changed = state.excluded | {event.machine} if event.excluded else state.excluded - {event.machine}
            return replace(state, excluded=changed)
        case ev.StopRequested():
            foreign = event.owner is not None and event.owner != state.owner
            return state if foreign else _end_run(state, Ending(Cause.STOP, event.by, event.at))
        case ev.DeadlinePassed():
            seconds = state.spec.active_deadline_seconds
            return _end_run(
                state, Ending(Cause.DEADLINE, f"the active deadline of {seconds:g} s has passed", event.at)
            )
        case ev.RunEnded():
            return replace(state, outcome=event.outcome, reason=event.reason, ended_at=event.at)
        case _:
            return state


def _submitted(state: RunState, event: ev.AttemptSubmitted) -> RunState:
    if state.attempt.phase is not Phase.SUBMITTING:
        return state
    live = {"phase": Phase.LIVE, "job": event.job, "submitted_at": event.at, "held": None}
    return state.with_attempt(**live, from_step=state.saved_step)


def _refused(state: RunState, event: ev.SubmitRefusedByEngine) -> RunState:
    if state.attempt.phase is not Phase.SUBMITTING:
        return state
    if event.for_now and may_wait(state):
        return _held(state, event.reason)
    # The job may exist in part: it is removed like any other before the next attempt.
    return _end_attempt(state, Cause.FAILURE, event.at, Failure(FailureKind.REFUSED, event.reason))


def _held(state: RunState, reason: str) -> RunState:
    if state.attempt.phase is not Phase.SUBMITTING or _words(reason) == _words(state.attempt.held):
        return state
    return state.with_attempt(held=reason)


def _words(reason: str | None) -> str:
    """The reason without its numbers: a quota that is used a little more is not worth an event."""
    return "".join(letter for letter in reason or "" if not letter.isdigit())


def _ranks_failed(state: RunState, event: ev.RanksFailed) -> RunState:
    attempt = state.attempt  # the submission may not be in the journal yet
    known = {worker.name for worker in attempt.failed}
    if attempt.phase not in (Phase.SUBMITTING, Phase.LIVE) or event.worker.name in known:
        return state
    failed_at = max(attempt.failed_at, event.step)
    return state.with_attempt(failed=(*attempt.failed, event.worker), failed_at=failed_at)


def _rejoin_refused(state: RunState, event: ev.RejoinRefused) -> RunState:
    if state.attempt.phase is not Phase.SUBMITTING or state.attempt.home is None:
        return state
    lost = not_in_place(event.reason, state.attempts[-2].failure)
    return _end_attempt(state, Cause.FAILURE, event.at, lost)


def _workers_ended(state: RunState, event: ev.WorkersEnded) -> RunState:
    if state.attempt.phase is not Phase.LIVE:
        return state
    machines = tuple(sorted({worker.node for worker in event.job.workers if worker.node is not None}))
    state = state.with_attempt(progress=event.progress or state.attempt.progress, machines=machines)
    failure = classify(event.job)
    if failure is None:
        return _end_attempt(state, Cause.SUCCEEDED, event.at)
    state = _end_attempt(state, _CAUSES.get(failure.kind, Cause.FAILURE), event.at, failure)
    lost = replaced(event.job, failure) if state.attempt.members is None else ()
    able = bool(lost) or event.job.recoverable(state.attempt.members)
    if not (able and may_rejoin(state, lost, event.job.machines_without(lost))):
        return state
    # No removal is needed first: the agents end the old ranks before they start new ones.
    state = state.with_attempt(phase=Phase.GONE, gone_at=event.at)
    home = state.attempt.home or state.attempt.number
    return _follow(state, decide(state), event.at, home=home, replaces=lost)


def _stalled(state: RunState, event: ev.Stalled) -> RunState:
    if state.attempt.phase is not Phase.LIVE:
        return state
    state = state.with_attempt(progress=event.progress or state.attempt.progress)
    return _end_attempt(state, Cause.FAILURE, event.at, hang(event))


def _gone(state: RunState, event: ev.AttemptGone) -> RunState:
    if state.attempt.phase is not Phase.ENDING:
        return state
    progress = event.progress or state.attempt.progress
    state = state.with_attempt(phase=Phase.GONE, gone_at=event.at, progress=progress)
    return _follow(state, decide(state), event.at)


def _follow(
    state: RunState,
    decision: Restart | End,
    at: float,
    *,
    home: int | None = None,
    replaces: tuple[int, ...] = (),
) -> RunState:
    """Apply the decision: the end, or an attempt in its own job or in that of `home`, where it may replace workers."""
    if isinstance(decision, End):
        return replace(state, outcome=decision.outcome, reason=decision.reason)
    state = replace(state, restarts_used=state.restarts_used + decision.cost)
    phase = Phase.PAUSED if decision.delay else Phase.SUBMITTING
    state = _plan(state, at, phase=phase, not_before=at + decision.delay)
    if home is None:
        return state
    before = state.attempts[-2]
    return state.with_attempt(home=home, workers=before.workers, members=before.members, replaces=replaces)


def _plan(state: RunState, at: float, *, phase: Phase, not_before: float) -> RunState:
    following = Attempt(state.attempt.number + 1, state.target, phase, planned_at=at, not_before=not_before)
    return replace(state, attempts=(*state.attempts, following), saves=())


def _regrouped(state: RunState, event: ev.Regrouped) -> RunState:
    if state.attempt.phase is not Phase.LIVE:
        return state
    return state.with_attempt(members=event.members if len(event.members) < state.attempt.workers else None)


def _scale_requested(state: RunState, event: ev.ScaleRequested) -> RunState:
    if not state.spec.workers.permits(event.workers) or event.request in state.planned_steps:
        return state
    if event.by in (ev.SCHEDULE, ev.AUTOSCALER):
        state = replace(state, planned_steps=state.planned_steps | {event.request})
    state = replace(state, target=event.workers)
    attempt = state.attempt
    if attempt.phase is Phase.PAUSED:  # it has not been submitted yet
        return state.with_attempt(workers=event.workers)
    # A job that is held may exist in part, with its former number of workers.
    fixed = attempt.held is not None or (attempt.phase is Phase.LIVE and not state.scales_in_place)
    if fixed and attempt.phase in (Phase.SUBMITTING, Phase.LIVE) and attempt.workers != event.workers:
        return _end_attempt(state, Cause.SCALE_STEP, event.at)
    return state


def _scale_decided(state: RunState, event: ev.ScaleDecided) -> RunState:
    noted, decision = replace(state, scaling=state.scaling.after(event)), event.decision
    asked = ev.ScaleRequested(event.at, f"policy.{event.at}", decision.workers, POLICY)
    return _scale_requested(noted, asked) if decision.acts else noted


def _resume_requested(state: RunState, event: ev.ResumeRequested) -> RunState:
    if state.ending or state.outcome or event.request in state.resumes:
        return state
    state = replace(state, resume_step=event.step, resumes=state.resumes | {event.request})
    running = state.attempt.phase in (Phase.SUBMITTING, Phase.LIVE)
    return _end_attempt(state, Cause.RESUME, event.at) if running else state


def _end_run(state: RunState, ending: Ending) -> RunState:
    if state.ending or state.outcome:
        return state
    state = replace(state, ending=ending)
    match state.attempt.phase:
        case Phase.PAUSED:  # no job exists that would have to be removed first
            outcome = "stopped" if ending.cause is Cause.STOP else "failed"
            state = state.with_attempt(
                phase=Phase.GONE, cause=ending.cause, ended_at=ending.at, gone_at=ending.at
            )
            return replace(state, outcome=outcome, reason=ending.reason)
        case Phase.SUBMITTING | Phase.LIVE:
            return _end_attempt(state, ending.cause, ending.at)
        case _:
            return state


def _end_attempt(state: RunState, cause: Cause, at: float, failure: Failure | None = None) -> RunState:
    return state.with_attempt(phase=Phase.ENDING, cause=cause, ended_at=at, failure=failure)


#: Failures in which an agent was lost with its memory, or never started.
_HELD_BY_NOBODY = (FailureKind.WORKER_LOST, FailureKind.REFUSED)


def _grace(state: RunState) -> float:
    """Seconds to save before being killed: none if there is nothing to save, or no agent that could save it.

    After a failure agents write the state that they have in memory. The part of a lost worker is missing, so the state
    is incomplete, unless workers keep copies for each other.
    """
    attempt, buddies = state.attempt, state.spec.checkpoint.buddies
    failure = attempt.failure
    lost = failure is not None and failure.kind in _HELD_BY_NOBODY and not failure.all_there
    useless = attempt.cause in (Cause.SUCCEEDED, Cause.RESUME)
    hopeless = useless or (attempt.cause is Cause.FAILURE and lost and not buddies)
    return 0.0 if hopeless else state.spec.health.grace_seconds


def _moved(state: RunState, event: ev.RunMoved) -> RunState:
    if state.outcome == "succeeded" or state.spec == event.spec:
        return state
    submitted = state.attempt.phase in (Phase.SUBMITTING, Phase.LIVE)
    return replace(state.with_attempt(moved=state.attempt.moved or submitted), spec=event.spec)


def _reopen(state: RunState, event: ev.RunReopened) -> RunState:
    if state.ended_at is None or state.outcome == "succeeded":
        return state
    state = replace(
        state,
        rested_seconds=state.rested_seconds + max(0.0, event.at - state.ended_at),
        opened_at=event.at,
        owner=event.owner,
        task=event.task,
        first_attempt=len(state.attempts),
        restarts_used=0,
        ending=None,
        outcome=None,
        reason=None,
        ended_at=None,
    )
    return _plan(state, event.at, phase=Phase.SUBMITTING, not_before=event.at)
