"""A tiny training whose validation loss follows a list, one value for each epoch, with steps of its own.

Arguments: the values. Options: --out FILE: rank 0 adds a line for each epoch, and one at the end; --die-at STEP: in the
first attempt each rank kills itself there, after the step; --own: a loop without run.epochs; --with-step: the value
comes with each step; --alone: other ranks give other values, or none.
"""

import argparse
import os
import signal

import torch
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("values", type=float, nargs="+")
parser.add_argument("--out", required=True)
parser.add_argument("--die-at", type=int, default=-1)
parser.add_argument("--own", action="store_true")
parser.add_argument("--with-step", action="store_true")
parser.add_argument("--alone", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
run = elastic.init()
torch.manual_seed(7)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
began = run.restore(model, optimizer)
data = torch.utils.data.TensorDataset(torch.arange(48).float().reshape(-1, 3) / 100)
EPOCHS, STEPS = len(options.values), 4


def note(line):
    if run.rank == 0:
        with open(options.out, "a", encoding="utf-8") as file:
            file.write(f"{run.attempt} {line}\n")


def train(x, **metrics):
    loss = run.weight * ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(loss, **metrics)
    if run.attempt == 1 and run.steps == options.die_at:
        os.kill(os.getpid(), signal.SIGKILL)


def metrics_of(epoch):
    """What this rank gives: with --alone the others give something else or nothing, which does not count."""
    if run.rank and options.alone:
        return {"val_loss": 100.0 + epoch} if epoch % 2 else {}
    return {"val_loss": options.values[epoch]}


if options.own:
    while not run.stopping and run.steps < EPOCHS * STEPS:
        train(torch.ones(2, 3))
        if run.steps % STEPS == 0:
            note(f"epoch {run.steps // STEPS - 1}")
            run.report(**metrics_of(run.steps // STEPS - 1))
elif options.with_step:
    for (x,) in run.loader(data, global_batch=4, epochs=EPOCHS):
        train(x, **metrics_of(run.steps // STEPS))
else:
    for epoch in run.epochs(EPOCHS):
        for (x,) in run.loader(data, global_batch=4):
            train(x)
        note(f"epoch {epoch}")
        run.report(**metrics_of(epoch))
note(f"end at {run.steps} stopping {run.stopping}")
run.finish()
