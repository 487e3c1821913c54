"""A state, a step or a checkpoint that a run reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.spec.validation import Checks, choice, positive_int

if TYPE_CHECKING:
    from airflow_elastic.core.conditions.look import Look

STATES = ("running", "ended", "succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Reached:
    """A state, a step or a checkpoint of a run; exactly one of them is set.

    Attributes:
        state: `running` (workers were submitted), `ended`, or an outcome: `succeeded`, `failed`, `stopped`.
        step: an optimizer step that the run has done.
        checkpoint: a checkpoint of this step or a later one exists; True means any checkpoint.

    Raises:
        SpecError: none or several are set, or a value is not allowed.
    """

    kind: ClassVar[str] = "reached"
    reads: ClassVar[frozenset[str]] = frozenset()

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

    def judge(self, look: Look, before: Look | None = None) -> dict[str, Any] | None:
        """The summary of the run once it has reached the target; None before. Raises OutOfReach."""
        if self._holds(look):
            return look.summary()
        if look.outcome is not None:
            raise look.out_of_reach(str(self))
        return None

    def _holds(self, look: Look) -> bool:
        if self.state == "running":
            submitted = any(attempt["submitted_at"] for attempt in look.document["attempts"])
            return look.outcome is not None or submitted
        if self.state is not None:
            return look.outcome is not None and self.state in ("ended", look.outcome)
        if self.step is not None:
            return look.step >= self.step
        return look.saved_step >= int(self.checkpoint or 0) and look.saved_step > 0
