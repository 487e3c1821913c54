"""Pieces of a global batch, which ranks claim when they are ready; and the average of their gradients.

The next piece is a number in the store of the rendezvous, which the lead agent runs. It counts only within a step, at
whose end ranks meet. If a worker is lost, its claims are lost with the step. The next attempt resumes from a
checkpoint, with a store that counts from the start.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store as _default_store
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.collectives.process_group import Collectives


class Claims:
    """Numbers that ranks take: each number goes to one rank.

    Args:
        ranks: this rank among the others.
    """

    def __init__(self, ranks: Collectives) -> None:
        self.world_size = ranks.world_size
        self._ranks, self._batch, self._next, self._most = ranks, 0, 0, 0
        self._store = None if ranks.alone else PrefixStore("claims", _default_store())

    def begin(self, pieces: int) -> int:
        """Begin another global batch, of so many pieces. Returns the number of this rank's first piece.

        Other ranks may still be at the batch before: on GPUs, only the GPUs wait for the exchange of gradients.
        """
        self._batch, self._next, self._most = self._batch + 1, 0, max(pieces, self.world_size)
        return self._ranks.rank

    def take(self) -> int:
        """The next free number. Each rank takes numbers until it gets one without a piece."""
        if self._store is None:
            self._next += 1
            return self._next
        key = str(self._batch)
        taken = self._store.add(key, 1)
        if taken == self._most:  # all other pieces, and one number for each rank: no rank takes another
            self._store.delete_key(key)
        return self.world_size - 1 + taken


def exchange(model: DistributedDataParallel) -> None:
    """Average the gradients over ranks, as DDP does in a backward pass that it knows to be the last one."""
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
