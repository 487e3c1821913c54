"""How long the parts of one recovery took."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Recovery:
    """The time from the last step of an attempt to the first step of the next one, in seconds.

    Attributes:
        noticing: until the end of the attempt was known.
        deciding: until the next attempt was submitted; with the removal of the former job, and the pause, if any.
        meeting: until all workers had come to the rendezvous, and started their ranks.
        restoring: reading the checkpoint.
        starting: everything else up to the first step: processes, imports, the model, the step itself.
    """

    noticing: float
    deciding: float
    meeting: float
    restoring: float
    starting: float

    @property
    def seconds(self) -> float:
        """The whole time."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """The parts, in the order in which they happen, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
