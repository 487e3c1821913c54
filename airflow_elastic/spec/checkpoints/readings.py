"""Who has read a checkpoint, and when: to verify it, or to use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reading:
    """Somebody has read a checkpoint and compared all that was read with its checksums.

    Attributes:
        by: who, in words.
        at: epoch seconds.
        data: the folder of the files. The same step may be saved again, into another folder.
    """

    by: str
    at: float
    data: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What is known of checkpoints that were read whole from storage.

    Attributes:
        step: of the one that ranks went on from last, or `verify` has read last. Retention keeps it.
        readings: the last reading of each checkpoint, by its step.
    """

    step: int
    readings: Mapping[str, Reading] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Uses:
    """Who has read a checkpoint to use it, outside of its own run."""

    uses: tuple[Reading, ...] = ()
