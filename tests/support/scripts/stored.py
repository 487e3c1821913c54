"""A tiny training whose run is kept as a file among the tests, with a value of each kind that a checkpoint may hold.

Arguments: own (DDP) or sharded (FSDP2). Options: --out FILE: rank 0 writes what the training has come to, as JSON;
--step-seconds S.
"""

import argparse
import hashlib
import json
import time
from collections import Counter

import numpy
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

EPOCHS, LENGTH, BATCH = 3, 64, 8


class Noting(torch.nn.Linear):
    """A layer whose state is not all tensors."""

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x)

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Tally:
    """A value of the script's own type, which holds a tensor."""

    def __init__(self):
        self.total = torch.zeros(2)

    def __getstate__(self):
        return {"total": self.total}


class Diary:
    """An object that the script saves by a name: plain values, tensors, and an array that is kept apart."""

    def __init__(self):
        self.steps, self.words, self.tally = [], Counter(), Tally()
        self.mean, self.table = torch.zeros(3), numpy.zeros(9000)

    def note(self, step):
        self.steps.append(step)
        self.words[f"step {step % 3}"] += 1
        self.tally.total += torch.tensor([1.0, step])
        self.mean.lerp_(torch.full((3,), float(step)), 0.5)
        self.table[step] = step

    def state_dict(self):
        return {
            "steps": self.steps,
            "words": self.words,
            "tally": self.tally,
            "pair": (self.mean, "mean"),
            "table": self.table,
        }

    def load_state_dict(self, state):
        self.steps, self.words, self.tally = state["steps"], state["words"], state["tally"]
        (self.mean, _), self.table = state["pair"], state["table"]

    def told(self):
        return {
            "steps": self.steps,
            "words": dict(self.words),
            "tally": self.tally.total.tolist(),
            "mean": self.mean.tolist(),
            "table": self.table[: len(self.steps) + 2].tolist(),
        }


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(Noting(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("own", "sharded"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.serialization.add_safe_globals([Tally])
    run = elastic.init()
    model = network()
    if options.kind == "sharded":
        model[1].p = 0.0  # so that ranks of any number learn the same
        fully_shard(model[2])
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    torch.manual_seed(100 + run.rank)
    data = torch.utils.data.TensorDataset(torch.arange(LENGTH * 4).float().reshape(-1, 4) / LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    diary = Diary()
    run.restore(model, optimizer, schedule=schedule, diary=diary)
    for (x,) in run.loader(data, global_batch=BATCH, epochs=EPOCHS, seed=3):
        loss = run.weight * ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        diary.note(run.steps + 1)
        time.sleep(options.step_seconds)
        run.step(loss)
    weights = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    if run.rank == 0:
        told = {
            "steps": run.steps,
            "rate": schedule.get_last_lr(),
            "diary": diary.told(),
            "weights": [one.tolist() for one in weights],
        }
        if options.kind == "own":
            luck = torch.get_rng_state().numpy().tobytes()
            told |= {"luck": hashlib.sha256(luck).hexdigest(), "calls": model.module[0].calls}
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(told, file)
    run.finish(loss=float(loss.detach()))


if __name__ == "__main__":
    main()
