"""The result of a task whose run has ended: XComs, or an exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.core.event_sentences import tensorboard_command
from airflow_elastic.core.restart import has_begun
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.control.runs import Run
    from airflow_elastic.core.state import RunState
    from airflow_elastic.triggers.observer import Log

#: Failures of the script, its arguments or the specification. Another try of Airflow would meet the same failure.
_USERS_OWN = frozenset(
    {
        FailureKind.CODE_ERROR,
        FailureKind.CRASHED,
        FailureKind.CANNOT_START,
        FailureKind.BAD_ARGUMENTS,
        FailureKind.BAD_INPUT,
        FailureKind.REFUSED,
    }
)


def result(run: Run, state: RunState, log: Log) -> dict[str, Any]:
    """The result of a run that succeeded: `run_uri`, `step`, `checkpoint`, `metrics`, `attempts`, in plain JSON.

    The log says so, too: a triggerer under load may lose the last lines of a trigger, and with them the run's end.
    """
    progress = run.progress(state)
    step = state.newest_step(progress)
    log.info("%s", f"the run {run.store.uri} has succeeded at step {step}: {state.reason}")
    watch = progress.early_stop if progress else None
    best = (
        {} if watch is None else {"best": {"metric": watch.metric, "value": watch.best, "step": watch.step}}
    )
    return {
        "run_uri": run.store.uri,
        "step": step,
        "checkpoint": newest_checkpoint(run),
        "metrics": dict(progress.metrics) if progress else {},
        "attempts": len(state.attempts),
        **best,
    }


def last_number_of_ranks(run: Run, state: RunState) -> int | None:
    """Number of ranks that trained last; None if they have not reported it."""
    progress = run.progress(state)
    return progress.world_size if progress else None


def newest_checkpoint(run: Run) -> dict[str, Any] | None:
    """Step, URI of the manifest and URI of the files of the newest checkpoint. None without a checkpoint."""
    steps = checkpoints.steps(run.store)
    if not steps:
        return None
    step = steps[-1]
    data = checkpoints.read(run.store, step).data
    return {
        "step": step,
        "manifest": f"{run.store.uri}/{layout.manifest(step)}",
        "data": f"{run.store.uri}/{data}",
    }


def failure(run: Run, state: RunState, log: Log) -> AirflowException:
    """The exception for a run that did not succeed. The first failing rank's traceback goes to the task's log.

    If another try would meet the same failure, it is an AirflowFailException, after which Airflow does not try again.
    This holds for an error of the script, a run that the engine refuses, and a run that a person has stopped.
    Otherwise Airflow may try again. The try reopens the run, which goes on from its newest checkpoint with its full
    number of restarts.
    """
    attempt, reason = state.attempt, state.reason or "unknown"
    failed = attempt.failure
    if failed is not None and failed.traceback:
        who = f"rank {failed.rank} on {failed.worker}" if failed.rank is not None else f"{failed.worker}"
        hung = failed.kind is FailureKind.NO_PROGRESS
        head = "where its ranks stood" if hung else f"{who}, the first to fail"
        log.error("%s", f"{head}:\n{failed.traceback.rstrip()}")
    kept = f"; its newest checkpoint is of step {state.checkpoint.step}" if state.checkpoint else ""
    if state.outcome == "stopped":
        ended = f"was {reason if reason.startswith('stopped') else f'stopped: {reason}'}"
    else:
        ended = f"failed: {reason}"
    text = f"the run {run.store.uri} {ended}{kept}"
    own = failed is not None and failed.kind in _USERS_OWN and attempt.cause is Cause.FAILURE
    if failed is not None and failed.kind is FailureKind.BAD_INPUT and has_begun(state):
        own = False  # the reason may be one machine, or the number of workers
    return AirflowFailException(text) if is_stopped(state) or own else AirflowException(text)


def is_stopped(state: RunState) -> bool:
    """Whether somebody has stopped the run."""
    return state.attempt.cause is Cause.STOP or state.outcome == "stopped"


def run_summary(run: Run, state: RunState) -> str:
    """What a task finds at its run URI, for its log."""
    attempt, board = state.attempt, ""
    if state.spec.tensorboard:
        board = f"; to watch it: {tensorboard_command(run.store.uri)}"
    if state.ended:
        return f"has ended before: {state.outcome}{board}"
    if attempt.job is None and attempt.number == 1:
        return f"is new{board}"
    return f"is taken over: {state.label}, attempt {attempt.number}, step {attempt.last_step}{board}"
