"""Which samples a rank gets: the order depends on (seed, epoch) alone, never on how many ranks there are.

The epoch's order is cut into global batches of constant size, and each global batch into one contiguous share a rank.
So every sample of an epoch is consumed exactly once whatever the world sizes were that went through it, and a run that
is resumed anywhere goes on with the very sample that was next. (The idea of a world-size-free order with a constant
global batch is that of ElasticDDP samplers such as DLRover's; positions count samples, not batches.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from airflow_elastic.spec.errors import shown
from airflow_elastic.spec.validation import MOST_COUNT


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The samples that a rank gets at once: its share of a global batch, or a part of this share.

    Attributes:
        start: where in the epoch's order the global batch begins.
        size: samples of the global batch.
        low, high: its samples are `[low, high)` of the global batch; none if the two are equal.
        weight: factor of its mean loss. With it the average over ranks of the sums is the mean over the global batch.
        last: whether it ends the rank's share, so that an optimizer step is due.
    """

    start: int
    size: int
    low: int
    high: int
    weight: float
    last: bool


@dataclass(frozen=True, slots=True)
class Order:
    """What decides the order of samples in each epoch.

    Attributes:
        length: samples of the data set; None of a stream, which says itself what its shards are.
        seed: of the order; None where nothing is shuffled.
    """

    length: int | None
    seed: int | None

    def __str__(self) -> str:
        samples = "a stream" if self.length is None else f"{self.length} samples"
        return f"{samples}, {'not shuffled' if self.seed is None else f'seed {self.seed}'}"


class ElasticBatches:
    """A batch sampler for `torch.utils.data.DataLoader`: yields this rank's share of each global batch, piece by piece.

    Args:
        length: samples of the data set.
        global_batch: samples of one optimizer step, all ranks together; the last one of an epoch may be smaller.
        epoch: which epoch.
        offset: samples of this epoch that have been consumed already.
        seed: together with `epoch`, determines the order.
        rank: this rank.
        world_size: all ranks.
        shuffle: False keeps the order of the data set.
        micro_batch: the most samples that a rank gets at once. Default: its whole share.
        even_pieces: cut the smaller global batch at the end of an epoch into as many pieces as any other.

    Attributes:
        length: samples of the data set.
        epoch_seed: the seed of the epoch.
    """

    def __init__(
        self,
        length: int,
        *,
        global_batch: int,
        epoch: int = 0,
        offset: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        micro_batch: int | None = None,
        even_pieces: bool = False,
    ) -> None:
        if length < 1 or global_batch < 1:
            raise ValueError(f"length {length} and global_batch {global_batch} must both be at least 1")
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch {micro_batch} must be at least 1; None is a rank's whole share")
        if (largest := max(length, global_batch, micro_batch or 0, abs(epoch), world_size)) > MOST_COUNT:
            raise ValueError(f"{shown(largest)} is too much: counts are kept in 64 bits")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} must be from 0 to {world_size - 1}")
        if not 0 <= offset <= length:
            raise ValueError(
                f"offset {offset} must be from 0 to {length}: is this another data set than before?"
            )
        self.length, self._global_batch, self._offset = length, global_batch, offset
        self._rank, self._world_size, self._micro_batch = rank, world_size, micro_batch
        self._even_pieces = even_pieces
        self.epoch_seed = seed_of(seed, epoch)
        self._order = order_of(length, seed, epoch, shuffle=shuffle)

    def __len__(self) -> int:
        whole, rest = divmod(self.length - self._offset, self._global_batch)
        return sum(
            times * len(self.pieces(size)) for times, size in ((whole, self._global_batch), (1, rest)) if size
        )

    def __iter__(self) -> Iterator[list[int]]:
        for piece in self.plan():
            low, high = piece.low, piece.high
            if low == high:
                # Others have more pieces: this rank still has to take part in the collectives, with weight 0; and with
                # as much as it has, as some layers (a batch norm) can do nothing with one sample.
                low, high = self.pieces(piece.size)[0]
            yield self.indices(piece.start + low, piece.start + max(high, low + 1))

    def plan(self) -> Iterator[MicroBatch]:
        """What is yielded, in other words."""
        for start, size in self.starts():
            share = self.pieces(size)
            for number, (low, high) in enumerate(share, 1):
                weight = (high - low) * self._world_size / size
                yield MicroBatch(start, size, low, high, weight, last=number == len(share))

    def starts(self) -> Iterator[tuple[int, int]]:
        """Where in the epoch's order global batches begin, and how many samples they have."""
        for start in range(self._offset, self.length, self._global_batch):
            yield start, self.size_at(start)

    def indices(self, start: int, stop: int) -> list[int]:
        """What lies there in the epoch's order."""
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def size_at(self, start: int) -> int:
        """Samples of the global batch that begins at `start`."""
        return min(self._global_batch, self.length - start)

    def share(self, size: int) -> tuple[int, int]:
        """This rank's part of a global batch of that size: from, to."""
        return size * self._rank // self._world_size, size * (self._rank + 1) // self._world_size

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """What this rank gets of a global batch of that size, one after the other: from, to.

        Of a smaller one its share in as few as it takes, as small ones are of little use, and then nothing, as often as
        others have more; each step in that way would take longer.
        """
        low, high = self.share(size)
        counted = self._global_batch if self._even_pieces else size
        everybodys = count_pieces(-(-counted // self._world_size), self._micro_batch)
        own = count_pieces(max(high - low, 1), self._micro_batch) if size < self._global_batch else everybodys
        return [*cut(low, high, own), *[(low, low)] * (everybodys - own)]

    def weight(self, size: int) -> float:
        """What this rank's mean loss counts, so that DDP's average over ranks is the mean over the global batch."""
        low, high = self.share(size)
        return (high - low) * self._world_size / size


def seed_of(seed: int, epoch: int) -> int:
    """The seed of an epoch."""
    return (seed * 1_000_003 + epoch) & 0x7FFF_FFFF_FFFF_FFFF


def order_of(length: int, seed: int, epoch: int, *, shuffle: bool) -> torch.Tensor:
    """The numbers below `length`, in the order of an epoch."""
    if not shuffle:
        return torch.arange(length)
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed_of(seed, epoch)))


def count_pieces(largest: int, micro_batch: int | None) -> int:
    """How many pieces each rank has of a global batch of which some rank has so many samples, and none has more.

    As many on every rank: a model's forward pass may have collectives, in which ranks wait for each other.
    """
    return -(-largest // (micro_batch or largest))


def cut(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """From `low` to `high` in so many parts, as equal as can be."""
    ends = [low + (high - low) * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))
