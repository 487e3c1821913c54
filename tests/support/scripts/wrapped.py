"""A small training of a wrapped model that begins with weights from a file. Each rank draws its own weights first.

Each rank writes the whole model into the folder `--out`: `loaded-RANK.pt`, and at its end `trained-RANK.pt`.
"""

import argparse
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--wrap", choices=("fsdp", "ddp"), required=True)
parser.add_argument("--weights", required=True)
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()

run = elastic.init()
torch.manual_seed(run.rank)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
if options.wrap == "fsdp":
    for layer in model:
        fully_shard(layer)
    model = fully_shard(model)
else:
    model = DistributedDataParallel(model)


def write(name: str) -> None:
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    torch.save(whole, options.out / f"{name}-{run.rank}.pt")


elastic.load_weights(options.weights, model)
write("loaded")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
run.restore(model, optimizer)
while run.steps < 5:
    model(torch.randn(12, 7)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    run.step()
write("trained")
run.finish()
