"""What a controller is told to do. Each is idempotent: carried out twice, or by two controllers, it is done once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Submit:
    """Give the attempt to the engine, under its deterministic name; adopt it where it is there already."""

    attempt: int
    workers: int


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Have the workers of the attempt before start the ranks of this one in their job.

    `lost`: those whose agents are not there, and whose places others are to take.
    """

    attempt: int
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """Change the live attempt to this number of workers."""

    attempt: int
    workers: int


@dataclass(frozen=True, slots=True)
class OrderSave:
    """Tell the agents of the live attempt to save."""

    attempt: int
    request: str


@dataclass(frozen=True, slots=True)
class Delete:
    """End all that lives of the attempt; give it `grace_seconds` to save first (0: kill at once)."""

    attempt: int
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until this epoch second, then say that the pause is over."""

    attempt: int
    until: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Clean up after the last attempt and write the last word."""

    outcome: str
    reason: str


Action = Submit | Rejoin | Scale | OrderSave | Delete | Pause | Finish
