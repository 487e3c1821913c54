"""The events that come with time: a hang (no rank makes a step for too long), a planned scale step, the deadline.

Pure: the controller passes the time in, and journals the events that come out.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_elastic.core.health.stack_comparison import rendered, told
from airflow_elastic.core.health.start_times import start_limit
from airflow_elastic.core.phases import completed
from airflow_elastic.core.state import Failure, FailureKind, Phase, RunState
from airflow_elastic.spec.events import SCHEDULE, DeadlinePassed, Event, SaveLeftOut, ScaleRequested, Stalled
from airflow_elastic.spec.status import Progress


def overdue(
    state: RunState, progress: Progress | None, now: float, waited_at: float = 0.0
) -> Iterator[Event]:
    """The events that are due at the time `now`. Times are epoch seconds.

    Args:
        state: from the journal.
        progress: newest report of the current attempt; None where there is none.
        now: the moment.
        waited_at: when a worker of the attempt was last known to wait for its start. Silence counts only after that:
            ranks that have made room for further workers stand still until these have come.
    """
    if state.ended:
        return
    if state.deadline_at is not None and now >= state.deadline_at and not state.ending:
        yield DeadlinePassed(at=now)
        return
    yield from _planned_steps(state, progress, now)
    yield from _left_out(state, progress, now)
    yield from completed(state, progress, now)
    if state.attempt.phase is Phase.LIVE and progress is not None and progress.attached:
        yield from _silence(state, progress, now, waited_at)


def _planned_steps(state: RunState, progress: Progress | None, now: float) -> Iterator[Event]:
    for i, step in enumerate(state.spec.scaling):
        request = f"scaling.{i}"
        if request in state.planned_steps:
            continue
        by_step = step.at_step is not None and progress is not None and progress.step >= step.at_step
        by_time = step.after_seconds is not None and now >= state.created_at + step.after_seconds
        if by_step or by_time:
            yield ScaleRequested(at=now, request=request, workers=step.workers, by=SCHEDULE)


def _left_out(state: RunState, progress: Progress | None, now: float) -> Iterator[Event]:
    """That a due save was skipped: reported once until another checkpoint is committed, even if it happens again."""
    if progress is None or progress.left_out < 0 or progress.attempt != state.attempt.number:
        return
    told, committed = state.left_out, state.checkpoint.step if state.checkpoint else -1
    fresh = told is None or told.attempt != progress.attempt or told.step <= committed
    if fresh and progress.left_out > max(
        committed, told.step if told and told.attempt == progress.attempt else -1
    ):
        took = (
            f", which took {progress.writing_seconds:.0f} s the last time"
            if progress.writing_seconds >= 1
            else ""
        )
        reason = f"the one before it was still being written to storage{took}; save less often, or to faster storage"
        yield SaveLeftOut(now, progress.attempt, progress.left_out, reason)


def _silence(state: RunState, progress: Progress, now: float, waited_at: float) -> Iterator[Event]:
    attempt, health = state.attempt, state.spec.health
    if attempt.members is not None:
        waited_at = 0.0  # the waiting workers are not those that train
    if not progress.stretches:
        return  # no rank has started: the time of a queue or an image is not a failure
    earliest = max(attempt.submitted_at or attempt.planned_at, waited_at)
    stretch = progress.stretches[-1]
    if stretch.first_step_at is None:
        # No step since the ranks were started: imports, compilation, or a restore, which reports its progress.
        start = start_limit(state, progress)
        idle = now - max(earliest, stretch.started_at, progress.moved_at)
        if idle >= start.seconds:
            yield Stalled(now, attempt.number, idle, None, progress, start.seconds, start.longest)
    else:
        idle = now - max(earliest, progress.moved_at)
        if idle >= health.no_progress_seconds:
            yield Stalled(now, attempt.number, idle, progress.step, progress, health.no_progress_seconds)


def hang(event: Stalled) -> Failure:
    """The failure: what took too long, and which rank holds the others up, if their stacks show it."""
    where = told(event.stacks)
    apart = [rank for stack in event.stacks if stack.elsewhere for rank in stack.ranks]
    cold = "; in case forks make them hang, ranks of this run start in new processes from now on"
    return Failure(
        FailureKind.NO_PROGRESS,
        silence(event) + (f"; {where}" if where else "") + (cold if event.of_fork else ""),
        rank=apart[0] if len(apart) == 1 else None,
        traceback=rendered(event.stacks) or None,
    )


def silence(event: Stalled) -> str:
    """What took too long: `no first step within 62 s; earlier starts took up to 14 s`."""
    if event.step is not None:
        return f"no progress for {event.idle_seconds:.0f} s since step {event.step}"
    usual = "" if event.longest_start is None else f"; earlier starts took up to {event.longest_start:.0f} s"
    return f"no first step within {event.limit_seconds or event.idle_seconds:.0f} s{usual}"
