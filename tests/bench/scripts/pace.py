"""A fixed number of equal steps: how long do they take? Under plain torchrun with --plain nothing of ours is imported.

`pace.py [--plain] --steps N --work N --out FILE`: a step multiplies matrices WORK times, and DDP makes ranks agree on
its gradient. Rank 0 writes when each step after the first WARM ones ended, and the processor time that it and its agent
(the parent process) have used in them. With --calibrate SECONDS it prints the WORK that makes such a step.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--plain", action="store_true")
parser.add_argument("--calibrate", type=float)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--warm", type=int, default=50)
parser.add_argument("--work", type=int, default=1)
parser.add_argument("--out")
options = parser.parse_args()

BATCH = 64
torch.set_num_threads(1)
matrix = torch.randn(192, 192)


def work(times: int) -> None:
    product = matrix
    for _ in range(times):
        product = matrix @ product


def agent_seconds() -> float:
    """Processor time of the parent process so far."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds_of(times: int) -> float:
    began = time.perf_counter()
    work(times)
    return time.perf_counter() - began


if options.calibrate:
    print(max(1, round(options.calibrate / statistics.median(seconds_of(10) / 10 for _ in range(100)))))
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
data = torch.utils.data.TensorDataset(torch.randn((options.warm + options.steps) * BATCH, 64))


def batches() -> Iterator[Any]:
    if run is not None:
        run.restore(model, optimizer)
        yield from run.loader(data, global_batch=BATCH, epochs=1)
    else:
        sampler = torch.utils.data.DistributedSampler(data, world, rank)
        yield from torch.utils.data.DataLoader(data, batch_size=BATCH // world, sampler=sampler)


ends, used = [], []
for number, (x,) in enumerate(batches()):
    if number == options.warm:
        used = [-time.process_time(), -agent_seconds()]
        ends = [time.perf_counter()]
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    work(options.work)
    if run is not None:
        run.step(loss)
    ends.append(time.perf_counter())
if rank == 0:
    seconds = {"rank": used[0] + time.process_time(), "agent": used[1] + agent_seconds()}
    with open(options.out, "w") as file:
        json.dump({"ends": ends, **seconds}, file)
if run is not None:
    run.finish()
else:
    dist.destroy_process_group()
