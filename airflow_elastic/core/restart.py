"""Decides a restart: whether a run is tried again (retry) after an attempt has ended, and after which backoff.

Ordered rules, the first one that matches wins, as in JobSet's failure policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.state import REPEATABLE, Attempt, Cause, FailureKind, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.spec.run import RestartPolicy
    from airflow_elastic.spec.status import Progress


#: What is refused before the first step of the run is refused again, whoever starts it.
REFUSED_AT_ONCE = (FailureKind.BAD_INPUT, FailureKind.BAD_ARGUMENTS)

#: An attempt that told no step and failed within this is taken to have failed at its start.
SOON_SECONDS = 300.0


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
    """What follows the current attempt, which is gone. Never called before it is: two attempts never live at once."""
    policy = state.spec.restart
    attempt = state.attempt
    exhausted = state.restarts_used >= policy.backoff_limit
    failure = attempt.failure

    if attempt.cause is Cause.SUCCEEDED or is_complete(state):
        if policy.policy != "Always" or exhausted or state.ending:
            return End("succeeded", "training is complete")
        return Restart(cost=1, delay=0.0)
    if state.ending:
        stopped = state.ending.cause is Cause.STOP
        return End("stopped" if stopped else "failed", state.ending.reason)
    if attempt.cause in (Cause.SCALE_STEP, Cause.PREEMPTION, Cause.UNATTENDED) or is_same_loss(attempt):
        taken = attempt.cause is Cause.PREEMPTION  # as by a node that refuses each pod, and does so at once
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


def may_rejoin(state: RunState, lost: Sequence[int] = ()) -> bool:
    """Whether the next attempt may begin in the job of the current one, whose agents are all there but for `lost`.

    That takes a moment where a new job takes a cluster's time, and its state is still in the agents' memory. But a job
    that fails again before its first step gets new workers, and so does one on a machine that is to be avoided, and one
    whose code is in another folder now. Where ranks have lost their peers, and nobody knows which, somebody may be gone
    whom the engine still takes to be there.
    """
    decision, attempt, failure = decide(state), state.attempt, state.attempt.failure
    if not isinstance(decision, Restart) or decision.delay or attempt.cause is not Cause.FAILURE:
        return False
    if failure is None or (failure.kind is FailureKind.WORKER_LOST and not lost):
        return False
    fruitless = attempt.home is not None and not attempt.advanced
    return not (fruitless or attempt.moved) and not set(state.avoid) & set(attempt.machines)


def may_wait(state: RunState) -> bool:
    """Whether a refused attempt may wait until it is accepted: where others of this life of the run have been.

    Of a first one somebody is there to read the refusal, and may have asked for what there will never be.
    """
    return any(attempt.submitted_at is not None for attempt in state.lives)


def is_same_loss(attempt: Attempt) -> bool:
    """Whether it was to begin with another worker in place of a lost one, and one more was lost before its first step.

    Of a rack that loses its power one machine is missed first. Likewise where the engine would not do it.
    """
    lost = attempt.failure is not None and attempt.failure.kind is FailureKind.WORKER_LOST
    return lost and bool(attempt.replaces) and not attempt.advanced


def is_complete(state: RunState) -> bool:
    """Whether the script has said that training is complete, and what it ended with is saved.

    Workers that die after that have nothing to do any more; one that dies earlier may have taken the last state along.
    """
    attempt = state.attempt
    if attempt.progress is None or not attempt.progress.finished:
        return False
    if not is_written(state, attempt.progress):
        return False
    if state.checkpoint is not None and state.checkpoint.step < attempt.last_step:
        return False
    # Of an agent that failed itself, as it does where it cannot write the last state.
    return attempt.failure is None or attempt.failure.kind not in (FailureKind.UNKNOWN, FailureKind.STORAGE)


def is_written(state: RunState, progress: Progress) -> bool:
    """Whether what ranks have saved last is committed."""
    committed = state.checkpoint.step if state.checkpoint is not None else -1
    return committed >= progress.saved


def has_begun(state: RunState) -> bool:
    """Whether the run has done a step: what is refused then may be so for a machine, or for so many workers."""
    return any(attempt.advanced for attempt in state.attempts)


def is_crash_loop(attempts: tuple[Attempt, ...]) -> bool:
    """Whether the last two attempts failed with the same repeatable error at the same step.

    For a script that tells no steps, and before it tells the first one, "the same step" is "soon after the start".
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
