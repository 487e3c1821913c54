"""A value that past runs propose for a field of a specification."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value for one field of a specification.

    Attributes:
        field: its path, such as `workers.count`, `workers.resources.memory` or `checkpoint.every_seconds`; or
            `command` with an option, which is only a hint.
        value: the proposed value: a number, or an amount as text.
        reason: why, in one sentence with the figures.
        runs: on how many runs it rests.
        now: the present value; None if it is not given.
        figures: the numbers behind it.
    """

    field: str
    value: Any
    reason: str
    runs: int
    now: Any = None
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def hint(self) -> bool:
        """Whether it is only shown, because it would change what is trained."""
        return self.field.startswith("command ")

    def is_in(self, plain: Mapping[str, Any]) -> bool:
        """Whether a specification, as plain values, has the proposed value."""
        place: Any = plain
        for name in self.field.split("."):
            place = place.get(name) if isinstance(place, Mapping) else None
        return bool(place == self.value)
