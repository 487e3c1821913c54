"""The process group of this rank: barrier, broadcast, gather and the world size. One rank alone needs no collective."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_group as _default_group

from airflow_elastic.runtime.collectives.connections import noted
from airflow_elastic.spec.errors import InvalidInput

T = TypeVar("T")


class Collectives:
    """A view of the process group.

    Args:
        rank: this rank.
        world_size: all ranks.
        group: a group with a CPU backend; None if there is only one rank.
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
        """Returns the values of all ranks, in the order of ranks, on every rank."""
        if self.group is None:
            return [mine]
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, mine, group=self.group)
        return parts

    def any(self, mine: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(self.largest(float(mine))()[0])

    def from_first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0. Every rank returns its result, or raises its error."""
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
        """Begin to find, for each number, the largest one of all ranks. Call the returned function for the result."""
        if self.group is None:
            return lambda: list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True)

        def answer() -> list[float]:
            work.wait()
            return [float(number) for number in tensor]

        return answer


def join(
    rank: int, world_size: int, device: torch.device, backend: str | None, timeout: float
) -> Collectives:
    """Join the other ranks, in the existing process group or in a new one.

    Args:
        rank: this rank.
        world_size: all ranks.
        device: for its tensors.
        backend: torch's, for gradients. Default: nccl with GPUs, else gloo.
        timeout: seconds after which a collective fails.

    Raises:
        InvalidInput: there is no such GPU.
    """
    cuda = device.type == "cuda"
    if cuda:
        if device.index >= (count := torch.cuda.device_count()):
            raise InvalidInput(
                f"local rank {device.index} has no GPU: its worker sees {count}; start as many ranks on a worker "
                "(workers.procs) as it has GPUs. To train without GPUs, hide them (CUDA_VISIBLE_DEVICES='')"
            )
        torch.cuda.set_device(device)
    if world_size == 1 and "MASTER_ADDR" not in os.environ:
        return Collectives(0, 1, None)
    backend = backend or ("nccl" if cuda else "gloo")
    if dist.is_initialized():  # a framework has been here before
        backend = dist.get_backend()
    else:
        with noted():
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    if world_size == 1:
        return Collectives(0, 1, None)
    # These collectives run between steps, on the CPU. If gradients use gloo too, its group serves both.
    with noted():
        group = _default_group() if backend == "gloo" else dist.new_group(backend="gloo")
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError("torch made no gloo group of all ranks: is this rank in the process group at all?")
    return Collectives(rank, world_size, group)
