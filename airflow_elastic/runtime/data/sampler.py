"""The samples that a rank gets: their order depends only on seed and epoch, never on the number of ranks.

The epoch's order is cut into global batches of constant size, and each global batch into one contiguous share a rank.
So every sample of an epoch is consumed exactly once, at any world sizes. A run that resumes at any point begins with
exactly the next sample. ElasticDDP samplers, such as DLRover's, have the same idea: a constant global batch, and an
order without the world size. Positions count samples, not batches.
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
    """The facts that decide the order of samples in each epoch.

    Attributes:
        length: samples of the data set; None for a stream, which describes its shards itself.
        seed: of the order; None without shuffling.
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
        epoch: the epoch.
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
                # Other ranks have more pieces. This rank still has to take part in the collectives, with weight 0. It
                # uses a whole piece, because some layers (a batch norm) cannot work with one sample.
                low, high = self.pieces(piece.size)[0]
            yield self.indices(piece.start + low, piece.start + max(high, low + 1))

    def plan(self) -> Iterator[MicroBatch]:
        """The pieces that the iterator yields."""
        for start, size in self.starts():
            share = self.pieces(size)
            for number, (low, high) in enumerate(share, 1):
                weight = (high - low) * self._world_size / size
                yield MicroBatch(start, size, low, high, weight, last=number == len(share))

    def starts(self) -> Iterator[tuple[int, int]]:
        """The places in the epoch's order where global batches begin, and their sizes."""
        for start in range(self._offset, self.length, self._global_batch):
            yield start, self.size_at(start)

    def indices(self, start: int, stop: int) -> list[int]:
        """The samples in this range of the epoch's order."""
        indices: list[int] = self._order[start:stop].tolist()
        return indices

    def size_at(self, start: int) -> int:
        """Samples of the global batch that begins at `start`."""
        return min(self._global_batch, self.length - start)

    def share(self, size: int) -> tuple[int, int]:
        """This rank's part of a global batch of that size: from, to."""
        return size * self._rank // self._world_size, size * (self._rank + 1) // self._world_size

    def pieces(self, size: int) -> list[tuple[int, int]]:
        """This rank's pieces of a global batch of that size, in order: from, to.

        All ranks have the same number of pieces. The global batch at the end of an epoch may be smaller. Then a rank
        cuts its share into as few pieces as possible, because small ones are of little use. The others are empty.
        """
        low, high = self.share(size)
        counted = self._global_batch if self._even_pieces else size
        everybodys = count_pieces(-(-counted // self._world_size), self._micro_batch)
        own = count_pieces(max(high - low, 1), self._micro_batch) if size < self._global_batch else everybodys
        return [*cut(low, high, own), *[(low, low)] * (everybodys - own)]

    def weight(self, size: int) -> float:
        """The weight of this rank's mean loss: with it DDP's average over ranks is the mean over the global batch."""
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
    """The number of pieces of each rank in a global batch. `largest`: the most samples that a rank has of it.

    Each rank has the same number, because ranks may wait for each other in collectives of the forward pass.
    """
    return -(-largest // (micro_batch or largest))


def cut(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Cut the range from `low` to `high` into so many parts, as equal as possible."""
    ends = [low + (high - low) * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))
