"""What ranks have really consumed: kept beside checkpoints, where a run accounts for its samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Consumed:
    """What one rank has consumed in one optimizer step.

    Attributes:
        step: the step, from 1.
        epoch: from 0.
        samples: indices into the data set.
    """

    step: int
    epoch: int
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Account:
    """What one rank tells with one save.

    Attributes:
        attempt, generation, rank, world_size: who tells.
        from_step: the step that the ranks of this generation went on from.
        length: samples of the data set; 0 where the script used no `loader`.
        steps: what was consumed since the save before this one, or since the last that was written.
    """

    attempt: int
    generation: int
    rank: int
    world_size: int
    from_step: int
    length: int
    steps: tuple[Consumed, ...] = ()
