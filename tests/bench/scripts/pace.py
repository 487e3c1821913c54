"""Equal steps without end: how long do they take? With --plain, under torchrun, nothing of ours is imported.

`pace.py [--plain] --work N --out FILE`: a step multiplies matrices N times, and DDP has ranks agree on its gradient.
Rank 0 writes for each step when it ended (monotonic clock), the processor time it has used so far, and the seconds that
it spent in our `step`, as three doubles.
With --calibrate SECONDS it prints the N that makes such a step.
"""

import argparse
import struct
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
parser.add_argument("--calibrate", type=float)
parser.add_argument("--work", type=int, default=1)
parser.add_argument("--out", default="/dev/null")
options = parser.parse_args()

BATCH = 64
torch.set_num_threads(1)
matrix = torch.randn(192, 192)


def work(times: int) -> None:
    product = matrix
    for _ in range(times):
        product = matrix @ product


def seconds_of(times: int) -> float:
    began = time.perf_counter()
    work(times)
    return time.perf_counter() - began


if options.calibrate:
    print(max(1, round(options.calibrate / min(seconds_of(10) / 10 for _ in range(100)))))
    raise SystemExit

run: Any = None
if options.plain:
    dist.init_process_group("gloo")
else:
    import airflow_elastic.runtime as elastic

    run = elastic.init()
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(10_000 * BATCH, 64))


def batches() -> Iterator[Any]:
    if run is not None:
        run.restore(model, optimizer)
        yield from run.loader(data, global_batch=BATCH, epochs=1000)
    sampler = torch.utils.data.DistributedSampler(data, world, rank)
    for epoch in range(1000):
        sampler.set_epoch(epoch)
        yield from torch.utils.data.DataLoader(data, batch_size=BATCH // world, sampler=sampler)


with open(options.out if rank == 0 else "/dev/null", "ab", buffering=768) as out:
    for (x,) in batches():
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        work(options.work)
        ours = time.perf_counter()
        if run is not None:
            run.step(loss)
            ours -= time.perf_counter()
        spent = -ours if run is not None else 0.0
        out.write(struct.pack("ddd", time.monotonic(), time.process_time(), spent))
