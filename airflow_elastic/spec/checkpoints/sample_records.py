"""What ranks have really consumed: kept beside checkpoints, where a run accounts for its samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Samples that lie one after another in a shard: `count` of them, from number `start` on."""

    shard: int
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A shard was read to its end: it has `length` samples."""

    shard: int
    length: int


@dataclass(frozen=True, slots=True)
class Consumed:
    """What one rank has consumed in one optimizer step.

    Attributes:
        step: the step, from 1.
        epoch: from 0.
        samples: indices into the data set.
        spans: where the data is a stream: places in its shards.
        ended: shards whose end was come to on the way.
        size: samples of the global batch that it is a share of; 0 in accounts of earlier releases.
        phase: number of the training that it was a step of, from 0.
    """

    step: int
    epoch: int
    samples: tuple[int, ...] = ()
    spans: tuple[Span, ...] = ()
    ended: tuple[Ended, ...] = ()
    size: int = 0
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Data:
    """What a training's data is: `length` samples, or so many `shards` of a stream; 0 where it is not that."""

    phase: int
    length: int = 0
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """What one rank tells with one save.

    Attributes:
        attempt, generation, rank, world_size: who tells.
        from_step: the step that the ranks of this generation went on from.
        length, shards: of the data, in accounts of releases that knew of one training only.
        went_on_from: attempt and generation that saved the state at `from_step`; None where it is the beginning, and in
            accounts of earlier releases.
        steps: what was consumed since the save before this one, or since the last that was written.
        data: of each training that has used `loader`.
    """

    attempt: int
    generation: int
    rank: int
    world_size: int
    from_step: int
    length: int
    steps: tuple[Consumed, ...] = ()
    shards: int = 0
    went_on_from: tuple[int, int] | None = None
    data: tuple[Data, ...] = ()
