"""One rank that saves a model sharded by FSDP2, or restores it at another world size and measures that.

`reshard.py RUN_URI save|restore ROUNDS MEGABYTES`, with torch's environment of a rank. Rank 0 prints JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.saving import Position, Saver, Stateful
from tests.support.saving import Worker

uri, what, rounds, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
group = dist.group.WORLD
assert group is not None
ranks = Ranks(rank, world, group)

TENSORS = 36  # of the model; AdamW has two more for each
side = int((megabytes * 1e6 / 4 / 3 / TENSORS) ** 0.5)
model = torch.nn.Sequential(*(torch.nn.Linear(side, side, bias=False) for _ in range(TENSORS)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.ones_like(parameter)
optimizer.step()
optimizer.zero_grad()
objects = Stateful(model, (optimizer,), {})


def together(call: Callable[[], object]) -> float:
    """Seconds from when all begin until all are done."""
    dist.barrier()
    began = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - began


def raw_read() -> None:
    """Each rank reads its share of all bytes into memory in use: less cannot be done."""
    at, left = rank * share, share
    for path, size in files:
        begin, end = max(0, at), min(size, at + left)
        if begin < end and at < size:
            with path.open("rb", buffering=0) as file:
                file.seek(begin)
                file.readinto(memoryview(room)[: end - begin])
        at -= size


if what == "save":
    worker = Worker(uri, index=rank, of=world)
    saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words)
    saver.save(objects, 1, Position(), reason="script", metrics={})
    worker.persister.flush()
    dist.barrier()
else:
    files = [(path, path.stat().st_size) for path in sorted(Path(uri).glob("checkpoints/data/**/*.bin"))]
    whole = sum(size for _, size in files)
    share = whole // world
    room = bytearray(share)
    share_of_processors = max(1, (os.cpu_count() or 1) // world)  # as the agent of a worker tells its ranks
    room_of_rank = Room(Path(uri, "room"), 1, processors=share_of_processors)
    restorer = Restorer(open_store(uri), ranks, attempt=2, room=room_of_rank)
    reads, restores = [], []
    for _ in range(rounds + 1):
        reads.append(together(raw_read))
        restores.append(together(lambda: restorer.restore(objects)))
    if rank == 0:
        print(json.dumps({"bytes": whole, "read": reads[1:], "restore": restores[1:]}))
dist.destroy_process_group()
