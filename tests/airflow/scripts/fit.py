"""A small training through our runtime: `fit.py [--steps 60] [--pause 0.05]`, a line a step."""

from __future__ import annotations

import argparse
import time

import torch

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pause", type=float, default=0.05)
arguments = parser.parse_args()

run = elastic.init()
model = torch.nn.Linear(2, 1)
if run.world_size > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
began = run.restore(model, optimizer)
print(f"training from step {began} on {run.world_size} ranks", flush=True)  # noqa: T201
x = torch.randn(arguments.steps * 8, 2, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(x, x.sum(dim=1, keepdim=True))
for features, target in run.loader(data, global_batch=8, epochs=1):
    loss = run.weight * torch.nn.functional.mse_loss(model(features), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(arguments.pause)
    run.step(loss)
    print(f"step {run.steps} done", flush=True)  # noqa: T201
run.finish(loss=float(loss))
