"""A tiny training that notes the weights, and the optimizer's state, that it begins with in each attempt.

Options: --out FOLDER; --plain: no DDP; --sharded: FSDP2; --steps N; --width N; --lr RATE; --fail-first STEP: raise
there in the first attempt.
"""

import argparse
import json
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--width", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--fail-first", type=int, default=-1)
options = parser.parse_args()

torch.set_num_threads(1)
run = elastic.init()
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(3, options.width), torch.nn.Linear(options.width, 1))
if options.sharded:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
elif not options.plain:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
began = run.restore(model, optimizer)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().flatten().tolist()


moments = [whole(state["exp_avg"]) for state in optimizer.state.values()]
counts = [int(state["step"]) for state in optimizer.state.values()]
told = {
    "step": began,
    "weights": [whole(one) for one in model.parameters()],
    "moments": moments,
    "counts": counts,
    "rate": optimizer.param_groups[0]["lr"],
    "origin": run.origin.words if run.origin else None,
    "resumed": run.resumed is not None,
}
folder = Path(options.out)
folder.mkdir(parents=True, exist_ok=True)
(folder / f"{run.attempt}-{run.rank}.json").write_text(json.dumps(told))

data = torch.utils.data.TensorDataset(torch.arange(options.steps * 12).float().reshape(-1, 3) / 100)
loss = torch.zeros(())
for (x,) in run.loader(data, global_batch=4, epochs=1):
    if run.attempt == 1 and run.steps + 1 == options.fail_first:
        raise RuntimeError("as asked")
    loss = run.weight * ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(loss, score=-float(run.steps))
last = [whole(one) for one in model.parameters()]
if run.rank == 0:
    (folder / "last.json").write_text(json.dumps(last))
run.finish(loss=float(loss.detach()))
