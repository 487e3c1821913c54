"""A small training whose loss curve is the same whoever trains it, on data of several kinds.

Options: --kind indexed|stream|iterated; --micro N: the most samples that a rank gets at once; --dynamic: who is ready;
--lag RANK: each piece takes this rank 50 ms more; --workers N of the loader; --fsdp: sharded, not DDP;
--augment: each sample is given noise, drawn in three ways; --attempt-seed: each attempt orders samples in its own way;
--epochs N; --step-seconds S; --out FILE: rank 0 writes a digest of all weights at the end; --curve FILE: rank 0 appends
the step and the loss of the whole global batch.
"""

import argparse
import hashlib
import itertools
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--kind", choices=("indexed", "stream", "iterated"), default="indexed")
parser.add_argument("--micro", type=int)
parser.add_argument("--dynamic", action="store_true")
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--augment", action="store_true")
parser.add_argument("--attempt-seed", action="store_true")
parser.add_argument("--lag", type=int)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--out")
parser.add_argument("--curve")
options = parser.parse_args()

LENGTHS = [7 * shard % 31 for shard in range(23)]  # one of them has no sample
EACH = torch.linspace(-1, 1, 8 * sum(LENGTHS), dtype=torch.float64).reshape(-1, 8)


def noisy(sample):
    if not options.augment:
        return sample
    return sample + 0.1 * torch.randn(8) + 0.1 * np.random.rand() + 0.1 * random.random()


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(EACH)

    def __getitem__(self, index):
        return noisy(EACH[index])


def read(shard, offset):
    first = sum(LENGTHS[:shard])
    yield from map(noisy, EACH[first + offset : first + LENGTHS[shard]])


class Iterated(torch.utils.data.IterableDataset):
    """Says neither how long it is nor how to begin in the middle."""

    def __iter__(self):
        return iter(EACH)


iterated = Iterated()


def read_slice(slice_number, offset):  # as docs/how-to/stream-data.md has it
    return map(noisy, itertools.islice(iterated, slice_number + 8 * offset, None, 8))


torch.set_num_threads(1)
run = elastic.init()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
if options.fsdp:
    fully_shard(model)
elif run.world_size > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data, others = Noisy() if options.augment else EACH, {}
if options.kind == "stream":
    data = elastic.ShardedStream(range(len(LENGTHS)), read, lanes=6)
    others["data"] = data
if options.kind == "iterated":
    others["data"] = data = elastic.ShardedStream(range(8), read_slice, lanes=8)
run.restore(model, optimizer, **others)
total = torch.zeros((), dtype=torch.float64)
settings = {"global_batch": 32, "epochs": options.epochs, "micro_batch": options.micro, "seed": 3}
settings["dynamic"] = options.dynamic
if options.attempt_seed:
    settings["seed"] = run.attempt
if options.workers:  # by fork, or workers would run this script again from its top
    settings |= {"num_workers": options.workers, "multiprocessing_context": "fork"}
for x in run.loader(data, **settings):
    with run.accumulate(model):
        loss = run.weight * ((model(x) - x.sin().sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        time.sleep(0.05 * (run.rank == options.lag))
    total += loss.detach() / run.world_size
    if run.step_due:
        optimizer.step()
        optimizer.zero_grad()
        if run.world_size > 1:
            dist.all_reduce(total)
        if options.curve and run.rank == 0:
            with open(options.curve, "a", encoding="utf-8") as file:
                file.write(f"{run.steps + 1} {float(total)!r}\n")
        time.sleep(options.step_seconds)
        run.step(total)
        total.zero_()
whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
if options.out and run.rank == 0:
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in whole)).hexdigest()
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(weights)
run.finish()
