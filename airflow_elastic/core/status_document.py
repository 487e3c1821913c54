"""The status document: the state of a run for people and programs, as plain JSON values.

Its form is described in docs/reference/status.md and has a version; fields may be added within one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_elastic.core.goodput import goodput, goodput_share
from airflow_elastic.core.health.start_times import start_limit
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.status import WorkerPhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_elastic.core.state import Attempt, RunState
    from airflow_elastic.spec.checkpoints.phases import PhaseRecord
    from airflow_elastic.spec.status import JobStatus, Progress, Wait, WorkerStatus

STATUS_VERSION = 1


def word(state: RunState, progress: Progress | None, wait: Wait | None) -> str:
    """The state in one word, for people. While workers wait and no rank has started yet, it is what they wait for.

    A run that trains while further workers wait (after a scale step) is running.
    """
    if state.attempt.wait is not None and state.attempt.phase is Phase.SUBMITTING:
        return str(state.attempt.wait.state)
    if wait is None or state.attempt.phase is not Phase.LIVE:
        return state.label
    told = _told(state, progress)
    return state.label if told is not None and told.stretches else str(wait.state)


def document(
    uri: str,
    state: RunState,
    progress: Progress | None,
    now: float,
    wait: Wait | None = None,
    placement: Sequence[Mapping[str, Any]] = (),
    slow: Iterable[int] = (),
) -> dict[str, Any]:
    """The status document of a run at `now` (epoch seconds).

    Args:
        uri: the run URI.
        state: from the journal.
        progress: newest report of the current attempt; None where there is none.
        now: the time of the document.
        wait: what workers of the current attempt wait for, as its engine last said.
        placement: its workers, as `placement_of` gives them.
        slow: ranks that hold all others up, and have for a while.
    """
    attempt = state.attempt
    told = _told(state, progress)
    stood = _stood(state, told)
    spent = goodput(state, told, now)
    newest = state.checkpoint
    return {
        "version": STATUS_VERSION,
        "at": now,
        "run": {
            "uri": uri,
            "name": state.spec.name,
            "engine": state.spec.engine,
            "launcher": state.spec.launcher,
        },
        "state": word(state, progress, wait),
        "outcome": state.outcome if state.ended else None,
        "reason": state.reason,
        "created_at": state.created_at,
        "origin": None if state.origin is None else encode(state.origin),
        "ended_at": state.ended_at,
        "owner": state.owner,
        "workers": attempt.workers,
        "target_workers": state.target,
        "waiting": _wait({Phase.LIVE: wait, Phase.SUBMITTING: attempt.wait}.get(attempt.phase)),
        "restoring": None if told is None or state.ended else _restoring(told),
        "starting": None if told is None or attempt.phase is not Phase.LIVE else _starting(state, told),
        "pausing": _pausing(attempt),
        "world_size": told.world_size
        if told and told.world_size
        else attempt.workers * state.spec.workers.procs,
        "step": state.newest_step(told),
        "total_steps": _last(state, told, "total_steps"),
        "epoch": stood.epoch if stood else 0,
        "phases": [encode(phase) for phase in _phases(state, told)],
        "loss": _last(state, told, "loss"),
        "metrics": dict(_last(state, told, "metrics", {}) or {}),
        "early_stop": encode(_last(state, told, "early_stop")),
        "scaling": _scaling(state),
        "proposals": _proposals(state),
        "samples": {
            "seen": stood.samples if stood else 0,
            "per_second": _per_second(state, told),
        },
        "attempts": [_attempt(a, told if a is attempt else a.progress) for a in state.attempts],
        "restarts": {"used": state.restarts_used, "limit": state.spec.restart.backoff_limit},
        "checkpoints": {
            "committed": state.checkpoints,
            "newest": None if newest is None else encode(newest),
            "unsaved": None if state.unsaved is None else encode(state.unsaved),
            "left_out": None if state.left_out is None else encode(state.left_out),
            "unpruned": None if state.unpruned is None else encode(state.unpruned),
            "bad_copy": None if state.bad_copy is None else encode(state.bad_copy),
        },
        "placement": [] if state.ended else list(placement),
        "excluded_machines": sorted(state.excluded),
        "ranks": [encode(rank) for rank in told.ranks] if told and not state.ended else [],
        "usage": [encode(one) for one in told.usage] if told and not state.ended else [],
        "stragglers": sorted({rank.rank for rank in told.ranks} & set(slow))
        if told and attempt.phase is Phase.LIVE
        else [],
        "goodput": goodput_share(spent),
        "seconds": spent,
    }


def _proposals(state: RunState) -> list[dict[str, Any]]:
    """What past runs proposed, and which of it the run has taken."""
    plain = state.spec.to_dict() if state.proposals else {}
    return [{**encode(one), "taken": one.is_in(plain)} for one in state.proposals]


def _scaling(state: RunState) -> dict[str, Any] | None:
    """The newest decision of the scaling policy; None without a policy."""
    if state.spec.scaling_policy is None:
        return None
    told, plain = state.scaling.decided, {"steps": state.scaling.steps}
    if told is None:
        return {
            **plain,
            "at": None,
            "workers": state.target,
            "wanted": state.target,
            "rule": None,
            "reason": None,
        }
    one = told.decision
    return {
        **plain,
        "at": told.at,
        "workers": one.workers,
        "wanted": one.wanted,
        "rule": one.rule,
        "reason": one.reason,
    }


def placement_of(job: JobStatus) -> list[dict[str, Any]]:
    """The workers of a job as its engine sees them, without those that left; then those that stand by."""
    workers = [worker for worker in job.workers if worker.phase is not WorkerPhase.LEFT]
    return [*_places(workers, standby=False), *_places(job.standby_workers, standby=True)]


def _places(workers: Iterable[WorkerStatus], *, standby: bool) -> list[dict[str, Any]]:
    return [
        {
            "worker": worker.name,
            "phase": str(worker.phase),
            "machine": worker.node,
            "waiting": None if worker.waiting is None else str(worker.waiting),
            "reason": worker.reason,
            "standby": standby,
        }
        for worker in workers
    ]


def _told(state: RunState, progress: Progress | None) -> Progress | None:
    """The newest report of the current attempt."""
    return progress if progress and progress.attempt == state.attempt.number else state.attempt.progress


def _stood(state: RunState, told: Progress | None) -> Progress | None:
    """The newest report with a position: the ranks of a new attempt have none until they have restored."""
    reports = (told, *(attempt.progress for attempt in reversed(state.attempts)))
    return next((one for one in reports if one and (one.step or one.samples)), None)


def _wait(wait: Wait | None) -> dict[str, Any] | None:
    return (
        None
        if wait is None
        else {
            "state": str(wait.state),
            "workers": wait.workers,
            "of": wait.of,
            "reason": wait.reason,
        }
    )


def _restoring(told: Progress) -> dict[str, int] | None:
    """How much of its checkpoint the attempt has read, while it reads."""
    newest = told.stretches[-1] if told.stretches else None
    if newest is None or not newest.is_restoring:
        return None
    return {"bytes": newest.restored_bytes, "of_bytes": newest.to_restore_bytes}


def _pausing(attempt: Attempt) -> dict[str, float] | None:
    """While the attempt waits for its turn: since when, and until when."""
    if attempt.phase is not Phase.PAUSED:
        return None
    return {"since": attempt.planned_at, "until": attempt.not_before}


def _starting(state: RunState, told: Progress) -> dict[str, float | None] | None:
    """For ranks without a step: when they were started, the limit, and how long earlier starts took."""
    newest = told.stretches[-1] if told.stretches else None
    if newest is None or newest.first_step_at is not None or not told.attached:
        return None
    limit = start_limit(state, told)
    since = max(newest.started_at, told.moved_at)
    return {"since": since, "limit_seconds": limit.seconds, "longest_seconds": limit.longest}


def _last(state: RunState, told: Progress | None, field: str, empty: Any = None) -> Any:
    """A value that only ranks know, from the newest report that has it: a new attempt begins without (`empty`)."""
    for progress in (told, *(attempt.progress for attempt in reversed(state.attempts))):
        value = getattr(progress, field, None)
        if value is not None and value != empty:
            return value
    return None


def _per_second(state: RunState, told: Progress | None) -> float:
    """Throughput of the ranks that train, 0 before their first step; if none do, of those that trained last."""
    if state.attempt.phase is Phase.LIVE and not state.ended:
        return told.samples_per_second if told else 0.0
    return _last(state, told, "samples_per_second", 0.0) or 0.0


def _phases(state: RunState, told: Progress | None) -> tuple[PhaseRecord, ...]:
    """The phases of the report that is furthest ahead: a new attempt goes through the complete ones again."""
    reports = [report for report in (told, *(attempt.progress for attempt in state.attempts)) if report]
    return max((report.phases for report in reports), key=_far, default=())


def _far(phases: tuple[PhaseRecord, ...]) -> tuple[int, int]:
    return len(phases), phases[-1].steps if phases else 0


def _attempt(attempt: Attempt, progress: Progress | None) -> dict[str, Any]:
    failure = attempt.failure
    return {
        "number": attempt.number,
        "job": attempt.job,
        "in_place": attempt.home is not None,
        "phase": str(attempt.phase),
        "workers": attempt.workers,
        "from_step": replace(attempt, progress=progress or attempt.progress).restored_at,
        "last_step": max(attempt.last_step, progress.step if progress else 0),
        "planned_at": attempt.planned_at,
        "submitted_at": attempt.submitted_at,
        "ended_at": attempt.ended_at,
        "cause": None if attempt.cause is None else str(attempt.cause),
        "failure": None if failure is None else encode(failure),
        "recovery": None if (back := attempt.recovery) is None else {**back.parts(), "seconds": back.seconds},
        "stretches": [encode(stretch) for stretch in progress.stretches] if progress else [],
    }
