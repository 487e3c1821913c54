"""What benches of a sharded model share: ranks, with torch's environment, and a model of the size asked for."""

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from tests.bench.support.models import layers, stepped


def join() -> Collectives:
    """This rank, among the others that have begun."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return Collectives(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), dist.group.WORLD)


def build(megabytes: int) -> Stateful:
    """A model that FSDP2 has sharded, and its optimizer with the states that it has after a step."""
    model = layers(megabytes)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return stepped(model)


def together(call: Callable[[], object]) -> float:
    """Seconds from when all ranks begin until all are done."""
    dist.barrier()
    began = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - began
