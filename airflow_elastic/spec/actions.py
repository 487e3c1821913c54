"""What a controller has to do. Each action is idempotent: carried out twice, or by two controllers, it is done once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Submit:
    """Give the attempt to the engine, under its deterministic name; adopt it where it is there already."""

    attempt: int
    workers: int


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Let the workers of the previous attempt start the ranks of this one, within their job.

    `lost`: the workers whose agents are gone. Other workers will take their places.
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
    """Order the agents of the live attempt to save."""

    attempt: int
    request: str


@dataclass(frozen=True, slots=True)
class Delete:
    """End everything that still runs of the attempt, after `grace_seconds` in which it may save (0: kill at once)."""

    attempt: int
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class SetNewerAside:
    """Set all checkpoints newer than that of `step` aside, before the attempt is submitted."""

    attempt: int
    step: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until this epoch second, then say that the pause is over."""

    attempt: int
    until: float


@dataclass(frozen=True, slots=True)
class Finish:
    """Clean up after the last attempt and write the last event."""

    outcome: str
    reason: str


Action = Submit | Rejoin | Scale | OrderSave | SetNewerAside | Delete | Pause | Finish
