"""The trainings of a run, one after the other, as a checkpoint tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One training of a run.

    Attributes:
        name: as the script gave it; empty where the script speaks of no phases.
        from_step: optimizer steps that the run had done when it began.
        steps: optimizer steps of this phase.
        complete: whether it is over: a restart passes by it.
        sealed: whether the checkpoint of its last step was saved at its very end. Where that step had been saved
            before, what the script did between that step and the end is done again by who passes by.
        results: what the script has recorded of it, plain JSON values.
    """

    name: str = ""
    from_step: int = 0
    steps: int = 0
    complete: bool = False
    sealed: bool = False
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def to_step(self) -> int:
        """Optimizer steps that the run had done at its end, or as far as it has come: the checkpoint of that step is
        its newest one.
        """
        return self.from_step + self.steps
