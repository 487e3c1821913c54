"""The target that a sensor waits for, and whether a run has reached it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.control.runs import Run
from airflow_elastic.spec.errors import ElasticError, RunMissing
from airflow_elastic.spec.validation import Checks, choice, positive_int

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

STATES = ("running", "ended", "succeeded", "failed", "stopped")


class OutOfReach(ElasticError):
    """The run has ended without reaching the target."""


@dataclass(frozen=True, slots=True)
class Target:
    """A state, a step or a checkpoint of a run; exactly one of them is set.

    Attributes:
        state: `running` (workers were submitted), `ended`, or an outcome: `succeeded`, `failed`, `stopped`.
        step: an optimizer step that the run has done.
        checkpoint: a checkpoint of this step or a later one exists; True means any checkpoint.

    Raises:
        SpecError: none or several are set, or a value is not allowed.
    """

    state: str | None = None
    step: int | None = None
    checkpoint: int | bool | None = None

    def __post_init__(self) -> None:
        with Checks() as check:
            given = [value for value in (self.state, self.step, self.checkpoint) if value is not None]
            check.that(len(given) == 1, "state", self.state, "exactly one of state, step and checkpoint")
            if self.state is not None:
                check("state", self.state, choice(STATES))
            if self.step is not None:
                check("step", self.step, positive_int)
            if self.checkpoint is not None and self.checkpoint is not True:
                check("checkpoint", self.checkpoint, positive_int)

    def __str__(self) -> str:
        if self.state is not None:
            return f"state {self.state}"
        if self.step is not None:
            return f"step {self.step}"
        return "a checkpoint" if self.checkpoint is True else f"a checkpoint of step {self.checkpoint}"


def reached(store: Store, target: Target) -> dict[str, Any] | None:
    """Return the run's progress once it has reached the target. Blocks.

    Returns:
        `run_uri`, `state`, `step` and `checkpoint` (step of the newest one, or None). None if the run has not reached
        the target, or does not exist yet.

    Raises:
        OutOfReach: the run has ended before the target.
        StoreError: the storage cannot be reached.
    """
    run = Run(store)
    try:
        state = run.state
    except RunMissing:
        return None
    progress = run.progress(state)
    step = max(state.newest_step(progress), *(attempt.last_step for attempt in state.attempts))
    if target.state == "running":
        there = state.ended or any(attempt.submitted_at for attempt in state.attempts)
    elif target.state is not None:
        there = state.ended and target.state in ("ended", state.outcome)
    elif target.step is not None:
        there = step >= target.step
    else:
        there = state.saved_step >= int(target.checkpoint or 0) and state.saved_step > 0
    if there:
        return {
            "run_uri": store.uri,
            "state": state.label,
            "step": step,
            "checkpoint": state.saved_step or None,
        }
    if state.ended:
        raise OutOfReach(
            f"{store.uri} has {state.outcome} at step {step} ({state.reason}): it does not reach {target} any more"
        )
    return None
