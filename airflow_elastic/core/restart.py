"""Decides about a restart (a retry of the run) after an attempt has ended, and about its backoff.

Ordered rules, the first one that matches wins, as in JobSet's failure policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.state import REPEATABLE, Attempt, Cause, FailureKind, RunState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_elastic.spec.run import RestartPolicy
    from airflow_elastic.spec.status import Progress


#: A refusal before the run's first step will come again in any new attempt.
REFUSED_AT_ONCE = (FailureKind.BAD_INPUT, FailureKind.BAD_ARGUMENTS)

#: An attempt that reported no step and failed within so many seconds counts as failed at its start.
SOON_SECONDS = 300.0


#: Why a run ends whose script has come to its end.
COMPLETE = "training is complete"


@dataclass(frozen=True, slots=True)
class Restart:
    """Go on with a new attempt after `delay` seconds; `cost` is taken from the budget."""

    cost: int
    delay: float


@dataclass(frozen=True, slots=True)
class End:
    """The run is over."""

    outcome: str
    reason: str


def decide(state: RunState) -> Restart | End:
    """What follows the current attempt, which is gone. Called only then, because two attempts never run at once."""
    policy = state.spec.restart
    attempt = state.attempt
    exhausted = state.restarts_used >= policy.backoff_limit
    failure = attempt.failure

    if state.resume_step is not None and not state.ending:
        return Restart(cost=0, delay=0.0)
    if attempt.cause is Cause.SUCCEEDED or is_complete(state):
        if policy.policy != "Always" or exhausted or state.ending:
            return End("succeeded", _completion(state))
        return Restart(cost=1, delay=0.0)
    if state.ending:
        stopped = state.ending.cause is Cause.STOP
        return End("stopped" if stopped else "failed", state.ending.reason)
    interrupted = attempt.cause in (Cause.SCALE_STEP, Cause.PREEMPTION, Cause.UNATTENDED)
    if interrupted or is_same_loss(attempt) or is_first_of_fork(state):
        taken = attempt.cause is Cause.PREEMPTION  # such as a node that refuses each pod at once
        return Restart(cost=0, delay=backoff(policy, state.lives) if taken else 0.0)
    if failure is None:
        return End("failed", "the attempt ended and left no evidence of why")
    if failure.kind is FailureKind.REFUSED or (failure.kind in REFUSED_AT_ONCE and not has_begun(state)):
        return End("failed", failure.reason)
    if policy.policy == "Never":
        return End("failed", f"{failure.reason}; the restart policy is Never")
    if policy.policy == "ExitCode" and failure.exit_code not in policy.retryable:
        codes = ", ".join(map(str, sorted(policy.retryable)))
        return End(
            "failed", f"{failure.reason}; the restart policy ExitCode restarts only exit codes {codes}"
        )
    if is_crash_loop(state.lives):
        where = f"at step {attempt.last_step}" if attempt.last_step else "soon after the start"
        return End(
            "failed", f"{failure.reason}; the same error {where} twice: another restart would meet it again"
        )
    if exhausted:
        return End("failed", f"{failure.reason}; all {policy.backoff_limit} restarts of the budget are used")
    return Restart(cost=1, delay=backoff(policy, state.lives))


def may_rejoin(state: RunState, lost: Sequence[int], machines: Collection[str]) -> bool:
    """Whether the next attempt may begin in the job of the current one, whose agents are all there except `lost`.

    That takes a moment, and the state is still in the agents' memory; a new job takes a cluster's time. A new job is
    needed in these cases:

    - The job has failed again before its first step.
    - One of the `machines` that it would go on with must be avoided.
    - The code is in another folder now.
    - Ranks have lost an unknown peer: the engine may not know yet that it is gone.
    - A worker was preempted, and nobody can take its place.
    - Somebody has chosen an earlier checkpoint: the agents have newer states.
    """
    decision, attempt, failure = decide(state), state.attempt, state.attempt.failure
    failed = attempt.cause in (Cause.FAILURE, Cause.PREEMPTION) and state.resume_step is None
    if not isinstance(decision, Restart) or decision.delay or not failed:
        return False
    if failure is None or (failure.kind in (FailureKind.WORKER_LOST, FailureKind.PREEMPTED) and not lost):
        return False
    fruitless = attempt.home is not None and not attempt.advanced
    return not (fruitless or attempt.moved) and not set(state.avoid) & set(machines)


def may_wait(state: RunState) -> bool:
    """Whether a refused attempt may wait until it is accepted: only if earlier attempts since the opening were
    accepted.

    A first attempt ends with the refusal. Somebody is there to read it, and may have asked for something impossible.
    """
    return any(attempt.submitted_at is not None for attempt in state.lives)


def is_same_loss(attempt: Attempt) -> bool:
    """Whether it was to replace a lost worker, and another worker was lost before its first step.

    When a rack loses its power, one machine is missed first. The same holds if the engine could not replace the worker.
    """
    lost = attempt.failure is not None and attempt.failure.kind is FailureKind.WORKER_LOST
    return lost and bool(attempt.replaces) and not attempt.advanced


def is_first_of_fork(state: RunState) -> bool:
    """Whether ranks have failed because they were forked, for the first time in this run: then they start cold."""
    *before, last = (
        attempt.failure is not None and attempt.failure.kind is FailureKind.NEEDS_COLD_START
        for attempt in state.attempts
    )
    return last and not any(before)


def is_complete(state: RunState) -> bool:
    """Whether the script has said that training is complete, and the last state is saved.

    Workers that die after that have nothing left to do. A worker that dies earlier may take the last state with it.
    """
    attempt = state.attempt
    if attempt.progress is None or not attempt.progress.finished:
        return False
    if not is_written(state, attempt.progress):
        return False
    if state.checkpoint is not None and state.checkpoint.step < attempt.last_step:
        return False
    # Failures of agents: an agent fails if it cannot write the last state.
    return attempt.failure is None or attempt.failure.kind not in (FailureKind.UNKNOWN, FailureKind.STORAGE)


def is_written(state: RunState, progress: Progress) -> bool:
    """Whether the state that ranks have saved last is committed."""
    committed = state.checkpoint.step if state.checkpoint is not None else -1
    return committed >= progress.saved


def has_begun(state: RunState) -> bool:
    """Whether the run has done a step: a later refusal may depend on a machine, or on the number of workers."""
    return any(attempt.advanced for attempt in state.attempts)


def is_crash_loop(attempts: tuple[Attempt, ...]) -> bool:
    """Whether the last two attempts failed with the same repeatable error at the same step.

    Without a reported step, "the same step" is "soon after the start".
    """
    if len(attempts) < 2:
        return False
    before, last = (attempt.failure for attempt in attempts[-2:])
    return (
        last is not None
        and before is not None
        and last.kind in REPEATABLE
        and last.signature == before.signature
        and attempts[-1].last_step == attempts[-2].last_step
        and all(attempt.last_step or _was_short(attempt) for attempt in attempts[-2:])
    )


def _was_short(attempt: Attempt) -> bool:
    return (attempt.ended_at or 0.0) - (attempt.submitted_at or 0.0) <= SOON_SECONDS


def backoff(policy: RestartPolicy, attempts: tuple[Attempt, ...]) -> float:
    """Seconds to wait: none after an attempt that advanced or a first failure, then doubling."""
    fruitless = 0
    for attempt in reversed(attempts):
        if attempt.failure is None or attempt.advanced:
            break
        fruitless += 1
    if fruitless < 2:
        return 0.0
    return float(min(policy.backoff_max_seconds, policy.backoff_seconds * 2.0 ** min(fruitless - 2, 60)))


def _completion(state: RunState) -> str:
    """Why a run that has succeeded has ended."""
    watch = state.attempt.progress.early_stop if state.attempt.progress else None
    return f"stopped early: {watch.words}" if watch is not None and watch.over else COMPLETE
