"""What one rule wants, and how a number is brought to an allowed size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Want:
    """What one rule says.

    Attributes:
        rule: its name, such as `load`.
        workers: the number of workers that it wants, or allows at most; an allowed size.
        reason: why, in half a sentence with the figures.
        figures: the numbers behind it.
    """

    rule: str
    workers: int
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)


def at_least(sizes: Sequence[int], number: float) -> int:
    """The smallest allowed size that is not below the number; the largest of all if there is none."""
    return next((size for size in sizes if size >= number - 1e-9), sizes[-1])


def at_most(sizes: Sequence[int], number: float) -> int:
    """The largest allowed size that is not above the number; the smallest of all if there is none."""
    return next((size for size in reversed(sizes) if size <= number + 1e-9), sizes[0])


def workers_text(count: int) -> str:
    """`1 worker`, `3 workers`."""
    return f"{count} worker{'' if count == 1 else 's'}"
