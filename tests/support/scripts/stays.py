"""Two trainings by `run.train`, of a model that is made before them. Each call says in which process it is.

Options: --out FILE: rank 0 writes a digest of the model at the end; --once: fails where a process calls again;
--wrap-before: wraps the model before the functions, which forbids a process to stay.
"""

import argparse
import hashlib
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--once", action="store_true")
parser.add_argument("--wrap-before", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
run = elastic.init()
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.rand(640, 4))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
earlier = DistributedDataParallel(model) if options.wrap_before and run.world_size > 1 else None
calls = {"first": 0, "second": 0}


def training(name, epochs):
    calls[name] += 1
    print(f"{name}: call {calls[name]} in {os.getpid()}, model {id(model)}", flush=True)
    if options.once and calls[name] > 1:
        raise ValueError(f"{name} was called before")
    with run.phase(name):
        wrapped = earlier or (DistributedDataParallel(model) if run.world_size > 1 else model)
        run.restore(wrapped, optimizer)
        for (x,) in run.loader(data, global_batch=32, epochs=epochs, seed=1):
            loss = run.weight * ((wrapped(x) - x.sum(1, keepdim=True)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(options.step_seconds)
            run.step(loss)
    return name


assert run.train(training, "first", 1) == "first"
assert run.train(training, "second", epochs=2) == "second"
if options.out and run.rank == 0:
    found = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    with open(options.out, "w") as file:
        file.write(found.hexdigest())
run.finish()
