"""The trainings of a run, one after the other, as checkpoints record them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """One training of a run.

    Attributes:
        name: as the script gave it; empty where the script names no phases.
        from_step: optimizer steps that the run had done when the phase began.
        steps: optimizer steps of this phase.
        complete: whether it is over. A restart skips it.
        sealed: whether the checkpoint of its last step was saved at its very end. If not, a restart that skips the
            phase repeats what the script did between its last step and its end.
        results: what the script has recorded for it, plain JSON values.
    """

    name: str = ""
    from_step: int = 0
    steps: int = 0
    complete: bool = False
    sealed: bool = False
    results: Mapping[str, Any] = field(default_factory=dict)

    @property
    def to_step(self) -> int:
        """Optimizer steps that the run had done by the end of the phase, or so far: its newest checkpoint."""
        return self.from_step + self.steps
