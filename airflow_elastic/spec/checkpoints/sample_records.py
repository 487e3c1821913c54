"""Which samples ranks have consumed: kept beside checkpoints, where a run accounts for its samples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Samples of a shard one after another: `count` of them, from number `start` on."""

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
        ended: shards whose end was reached.
        size: samples of the global batch that this is a share of; 0 in accounts of earlier releases.
        phase: number of the phase that the step was in, from 0.
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
    """The data of a training: `length` samples, or `shards` of a stream; the other one is 0."""

    phase: int
    length: int = 0
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Account:
    """The account that one rank writes with one save.

    Attributes:
        attempt, generation, rank, world_size: which rank wrote it.
        from_step: the step that the ranks of this generation went on from.
        length, shards: of the data, in accounts of releases that had only one training a run.
        went_on_from: attempt and generation that saved the state at `from_step`. None at the beginning, and in accounts
            of earlier releases.
        steps: what was consumed since the last account that was written.
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
