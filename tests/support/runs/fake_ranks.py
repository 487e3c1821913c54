"""Ranks without others: for what each of them finds out alone."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def as_ranks(world: int, each: Callable[..., Any], *args: Any) -> list[Any]:
    """What each of so many ranks says, none of which hears of the others. In processes of their own: torch keeps what
    it knows of meshes. And no forks of this one: it has threads, and what they hold no child ever gets.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(
        ["airflow_elastic.runtime", "torch.distributed.fsdp", "torch._dynamo", __name__]
    )
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(_as_rank, [(rank, world, each, args) for rank in range(world)], chunksize=1)


def _as_rank(rank: int, world: int, each: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    return each(*args)
