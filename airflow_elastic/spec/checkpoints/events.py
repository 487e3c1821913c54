"""What happens to the checkpoints of a run, as the journal keeps it: see `spec.events`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointCommitted:
    """A manifest was found: the checkpoint exists."""

    at: float
    attempt: int
    step: int
    key: str


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """A worker could not save its part of a checkpoint, or a copy for its disk or for a buddy.

    Training goes on, and the next save is tried.
    """

    at: float
    attempt: int
    step: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class SaveLeftOut:
    """A save that was due was skipped, the first one since a checkpoint was committed. Training goes on."""

    at: float
    attempt: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointQuarantined:
    """A committed checkpoint was damaged and has been set aside; `newest` was restored instead."""

    at: float
    attempt: int
    step: int
    newest: int
    reason: str


@dataclass(frozen=True, slots=True)
class PruneRefused:
    """After the commit of `step` no older checkpoint was removed, because none of those to keep has all its files."""

    at: float
    attempt: int
    step: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """A worker did not use its copy of a checkpoint, in memory or on a disk, because it is not what was saved.

    `newest`: the checkpoint that was restored instead, if it is another one.
    """

    at: float
    attempt: int
    step: int
    worker: str
    reason: str
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class SaveRequested:
    """Somebody wants a checkpoint now."""

    at: float
    request: str
    by: str


@dataclass(frozen=True, slots=True)
class SaveOrdered:
    """The agents of the attempt have the order to save."""

    at: float
    attempt: int
    request: str


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """Somebody wants the run to go on from the checkpoint of an earlier step. Later steps will not count."""

    at: float
    request: str
    step: int
    by: str


@dataclass(frozen=True, slots=True)
class NewerSetAside:
    """All checkpoints newer than that of `step` were set aside (`steps`), so the attempt goes on from there.

    `phases`: how many phases of the training are over at that step.
    """

    at: float
    attempt: int
    step: int
    steps: tuple[int, ...] = ()
    phases: int = 0


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """The chosen checkpoint is gone or damaged: nothing was set aside."""

    at: float
    attempt: int
    step: int
    reason: str
