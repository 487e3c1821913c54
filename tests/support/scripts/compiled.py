"""A training by `run.train`, of a model and with a loss that torch.compile has compiled before.

Its backend compiles nothing, and counts: each step says how many graphs there have been in this process.

Options: --step-seconds S.
"""

import argparse
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--step-seconds", type=float, default=0.0)
options = parser.parse_args()
graphs = []


def counting(graph, inputs):
    graphs.append(graph)
    return graph.forward


@torch.compile(backend=counting)
def loss_of(found, wanted):
    return ((found - wanted) ** 2).mean()


torch.set_num_threads(1)
run = elastic.init()
torch.manual_seed(3)
data = torch.utils.data.TensorDataset(torch.rand(640, 4))
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)), backend=counting)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def training():
    wrapped = DistributedDataParallel(model)
    run.restore(wrapped, optimizer)
    for (x,) in run.loader(data, global_batch=32, epochs=4):
        loss = loss_of(wrapped(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{len(graphs)} graphs in {os.getpid()}", flush=True)
        time.sleep(options.step_seconds)
        run.step(loss)
    run.finish()


run.train(training)
