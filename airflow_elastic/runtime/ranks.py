"""This rank among the others: the few collectives that the runtime needs, none of them where there is only one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class Ranks:
    """A view of the process group.

    Args:
        rank: this rank.
        world_size: all ranks.
        group: a group with a CPU backend; None where there is one rank only.
    """

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self.rank, self.world_size, self.group = rank, world_size, group

    @property
    def alone(self) -> bool:
        """Whether this is the only rank."""
        return self.group is None

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.group is not None:
            dist.barrier(group=self.group)

    def gather(self, mine: T) -> list[T]:
        """What every rank has, in the order of ranks, on every rank."""
        if self.group is None:
            return [mine]
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, mine, group=self.group)
        return parts

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank; what it raises there is raised on every rank."""
        if self.group is None:
            return make()
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = make()
            except Exception as error:
                box[1] = error
        dist.broadcast_object_list(box, src=0, group=self.group)
        if box[1] is not None:
            raise box[1]
        result: T = box[0]
        return result

    def largest(self, *numbers: float) -> Callable[[], list[float]]:
        """Begin to find, for each of the numbers, the largest one that any rank gives; what it returns waits for it."""
        if self.group is None:
            return lambda: list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True)

        def answer() -> list[float]:
            work.wait()
            return [float(number) for number in tensor]

        return answer
