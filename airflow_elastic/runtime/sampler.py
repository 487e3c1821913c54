"""Which samples a rank gets: the order depends on (seed, epoch) alone, never on how many ranks there are.

The epoch's order is cut into global batches of constant size, and each global batch into one contiguous share a rank.
So every sample of an epoch is consumed exactly once whatever the world sizes were that went through it, and a run that
is resumed anywhere goes on with the very sample that was next. (The idea of a world-size-free order with a constant
global batch is that of ElasticDDP samplers such as DLRover's; positions count samples, not batches.)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


class ElasticBatches:
    """A batch sampler for `torch.utils.data.DataLoader`: yields this rank's share of each global batch.

    Args:
        length: samples of the data set.
        global_batch: samples of one optimizer step, all ranks together; the last one of an epoch may be smaller.
        epoch: which epoch.
        offset: samples of this epoch that have been consumed already.
        seed: together with `epoch`, determines the order.
        rank: this rank.
        world_size: all ranks.
        shuffle: False keeps the order of the data set.
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
    ) -> None:
        if length < 1 or global_batch < 1:
            raise ValueError(f"length {length} and global_batch {global_batch} must both be at least 1")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} must be from 0 to {world_size - 1}")
        if not 0 <= offset <= length:
            raise ValueError(
                f"offset {offset} must be from 0 to {length}: is this another data set than before?"
            )
        self._length, self._global_batch, self._offset = length, global_batch, offset
        self._rank, self._world_size = rank, world_size
        self.epoch_seed = (seed * 1_000_003 + epoch) & 0x7FFF_FFFF_FFFF_FFFF
        self._order: torch.Tensor = torch.arange(length)
        if shuffle:
            self._order = torch.randperm(length, generator=torch.Generator().manual_seed(self.epoch_seed))

    def __len__(self) -> int:
        return len(range(self._offset, self._length, self._global_batch))

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(self._offset, self._length, self._global_batch):
            low, high = self.share(self.size_at(start))
            if low == high:
                # More ranks than samples: this one still has to take part in the collectives, with weight 0.
                yield [int(self._order[start])]
            else:
                yield self._order[start + low : start + high].tolist()

    def size_at(self, start: int) -> int:
        """Samples of the global batch that begins at `start`."""
        return min(self._global_batch, self._length - start)

    def share(self, size: int) -> tuple[int, int]:
        """This rank's part of a global batch of that size: from, to."""
        return size * self._rank // self._world_size, size * (self._rank + 1) // self._world_size

    def weight(self, size: int) -> float:
        """What this rank's mean loss counts, so that DDP's average over ranks is the mean over the global batch."""
        low, high = self.share(size)
        return (high - low) * self._world_size / size
