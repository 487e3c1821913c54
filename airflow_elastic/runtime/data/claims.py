"""Pieces of a global batch that are handed out to whoever is ready, and the gradients that come of them.

Who is next is a number in the store of the rendezvous, which the lead agent runs. It counts within a step only: ranks
meet at its end. What a lost worker had claimed is lost with the step; the next attempt goes on from a checkpoint, where
a store of its own begins to count anew.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store as _default_store
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.collectives.process_group import Collectives


class Claims:
    """Numbers, each of which is given to one rank.

    Args:
        ranks: this rank among the others.
    """

    def __init__(self, ranks: Collectives) -> None:
        self.world_size = ranks.world_size
        self._ranks, self._batch, self._next, self._most = ranks, 0, 0, 0
        self._store = None if ranks.alone else PrefixStore("claims", _default_store())

    def begin(self, pieces: int) -> int:
        """Another global batch, of so many pieces. Returns the number that is dealt first.

        Others may still be busy with the one before: on GPUs, exchanges of gradients are waited for by these alone.
        """
        self._batch, self._next, self._most = self._batch + 1, 0, max(pieces, self.world_size)
        return self._ranks.rank

    def take(self) -> int:
        """The next number that nobody has. Each rank takes them until there is no piece for one."""
        if self._store is None:
            self._next += 1
            return self._next
        key = str(self._batch)
        taken = self._store.add(key, 1)
        if taken == self._most:  # the pieces that were not dealt, and one for each rank: nobody takes another
            self._store.delete_key(key)
        return self.world_size - 1 + taken


def exchange(model: DistributedDataParallel) -> None:
    """Average the gradients over ranks, as DDP would in a backward pass of which it knew that it is the last one."""
    group, works = model.process_group, []
    gradients: list[torch.Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
            works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
    for gradient, work in zip(gradients, works, strict=True):
        if work is not None:
            work.wait()
        gradient.div_(dist.get_world_size(group))
