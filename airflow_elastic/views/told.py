"""Events of the journal as documents: what happened in words, how severe it is, and the evidence for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.overview.marks import kind_of
from airflow_elastic.core.severity import severity_of
from airflow_elastic.core.state import Attempt, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.events import Event
from airflow_elastic.spec.status import WorkerStatus


def fold(
    state: RunState | None, events: Iterable[Event], seq: int
) -> Iterator[tuple[RunState, dict[str, Any]]]:
    """The state after each event, and the event as a document.

    Args:
        state: the state before them; None for none.
        events: further events of the journal, in order.
        seq: number of the first one.
    """
    for number, event in enumerate(events, seq):
        before, state = state, create(event) if state is None else evolve(state, event)
        yield state, _told(number, event, before, state)


def _told(seq: int, event: Event, before: RunState | None, state: RunState) -> dict[str, Any]:
    """One event. `attempt`, `evidence` and `log` are None where it has none."""
    attempt = _attempt_of(event, state)
    return {
        "seq": seq,
        "at": event.at,
        "event": type(event).__name__,
        "kind": kind_of(event, state),
        "level": str(severity_of(event, before, state)).lower(),
        "text": sentence(event, before, state) or type(event).__name__,
        "attempt": None if attempt is None else attempt.number,
        "evidence": _evidence(event, attempt),
        "log": _log(event, attempt),
    }


def _attempt_of(event: Event, state: RunState) -> Attempt | None:
    number = getattr(event, "attempt", None)
    if isinstance(number, int) and 1 <= number <= len(state.attempts):
        return state.attempts[number - 1]
    return None


def _evidence(event: Event, attempt: Attempt | None) -> dict[str, Any] | None:
    """How a rank ended, the words of the engine, and the stacks of ranks that did not go on."""
    found: dict[str, Any] = {}
    match event:
        case ev.WorkersEnded():
            found = _of_workers(event.job.workers, attempt)
        case ev.RanksFailed():
            found = _of_workers((event.worker,), None)
        case ev.Stalled() if event.stacks:
            found = {"stacks": [encode(stack) for stack in event.stacks]}
    if all(value is None for value in found.values()):
        return None
    empty = dict.fromkeys(("error", "traceback", "exit_code", "signal", "output", "cluster", "stacks"))
    return {**empty, **found}


def _of_workers(workers: Iterable[WorkerStatus], attempt: Attempt | None) -> dict[str, Any]:
    workers = list(workers)
    failure = attempt.failure if attempt else None
    first = failure.worker if failure else None
    ordered = sorted(workers, key=lambda worker: worker.name != first)
    errors = [
        error
        for worker in ordered
        for error in sorted(
            worker.errors, key=lambda one: (failure is None or one.rank != failure.rank, one.at)
        )
    ]
    words = [f"{worker.name}: {worker.reason}" for worker in ordered if worker.reason]
    cluster = "\n".join(words[:20]) or None
    if not errors:
        return {"exit_code": failure.exit_code if failure else None, "cluster": cluster}
    error = errors[0]
    # Without an exception, the agent reports the last lines that the rank printed instead of a traceback.
    of = "traceback" if error.error else "output"
    return {
        "error": error.error,
        of: error.traceback,
        "exit_code": error.exit_code,
        "signal": error.signal,
        "cluster": cluster,
    }


def _log(event: Event, attempt: Attempt | None) -> dict[str, Any] | None:
    """Whose log shows more about a failure."""
    if attempt is None:
        return None
    rank = None
    match event:
        case ev.WorkersEnded() if attempt.failure is not None:
            rank = attempt.failure.rank
        case ev.RanksFailed():
            rank = next((error.rank for error in event.worker.errors if error.rank is not None), None)
    if rank is None:
        return None
    stretches = attempt.progress.stretches if attempt.progress else ()
    return {
        "attempt": attempt.number,
        "rank": rank,
        "generation": stretches[-1].generation if stretches else None,
    }
