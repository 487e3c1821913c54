"""Ranks that train by themselves and average their weights now and then.

Options: --every N steps; --patience S; --epochs N; --step-seconds S; --late STEP STEP...: behind each, before it is
told to the run, the last rank waits until rank 0 has the next round behind it, which a file in --marks FOLDER says;
--wrap: in DistributedDataParallel; --stay: by `run.train`; --out FOLDER: each rank writes its weights and those of
its momentum there at the end, as lists.
"""

import argparse
import json
import logging
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

LENGTH, BATCH, SEED = 103, 12, 3


def build(seed=7):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
    )
    model.double()  # so that what differs is no rounding
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def data():
    numbers = torch.arange(4.0 * LENGTH, dtype=torch.float64)
    return torch.utils.data.TensorDataset(numbers.reshape(LENGTH, 4) / (4 * LENGTH))


def train(model, optimizer, x, weight):
    loss = weight * ((model(x) - x.square().sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def numbers(model, optimizer):
    momentum = [optimizer.state[one]["momentum_buffer"].flatten().tolist() for one in model.parameters()]
    return [one.flatten().tolist() for one in model.state_dict().values()], momentum


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=4)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--late", type=int, nargs="*", default=[])
    parser.add_argument("--marks", type=Path)
    parser.add_argument("--wrap", action="store_true")
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    run = elastic.init()
    (run.train if options.stay else lambda function, *given: function(*given))(training, run, options)


def training(run, options):
    model, optimizer = build(7 + run.rank)  # what they begin with is the first one's
    run.restore(DistributedDataParallel(model) if options.wrap else model, optimizer)
    run.average(every=options.every, patience=options.patience)
    missed = [-(-late // options.every) * options.every for late in options.late]
    for (x,) in run.loader(data(), global_batch=BATCH, epochs=options.epochs, seed=SEED):
        loss = train(model, optimizer, x, run.weight)
        time.sleep(options.step_seconds)
        step = run.steps + 1
        if step in options.late and run.rank == run.world_size - 1:
            while not (options.marks / str(missed[options.late.index(step)])).exists():
                time.sleep(0.01)
        run.step(loss)
        if step in missed and run.rank == 0:
            (options.marks / str(step)).touch()
    run.settle()
    if options.out:
        (options.out / f"{run.rank}.json").write_text(json.dumps(numbers(model, optimizer)))
    run.finish()


if __name__ == "__main__":
    main()
