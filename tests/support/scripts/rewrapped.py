"""A small training that DDP carries on 2 ranks and FSDP2 on any other number. `--trace FILE`: what the whole state was.

Rank 0 appends a line of JSON after each step, and one when it goes on: `word` (did, restored), `step`, `wrap`, and by
the name of each weight and of each optimizer state, as the bare model calls them, a digest of its bytes. It ends some
steps after it has had 2, 3 and again 2 ranks.
"""

import argparse
import hashlib
import json
import time
from typing import Any

import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--trace", required=True)
options = parser.parse_args()


class Worlds:
    """The numbers of ranks that there were, one after another."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


run = elastic.init()
torch.manual_seed(run.attempt + run.world_size)  # what is not restored differs
model = torch.nn.Sequential(
    torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)
)
wrap = "ddp" if run.world_size == 2 else "fsdp"
if wrap == "ddp":
    wrapped: torch.nn.Module = DistributedDataParallel(model)
else:
    for layer in model:
        fully_shard(layer)
    wrapped = fully_shard(model)
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.05)
worlds = Worlds()


def digest(value: torch.Tensor) -> str:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    about = f"{whole.dtype} {tuple(whole.shape)} "
    return about + hashlib.sha256(whole.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def trace(word: str, step: int) -> None:
    state = {}
    for name, parameter in model.named_parameters():
        state[name] = digest(parameter)
        for key, value in sorted(optimizer.state[parameter].items()):
            state[f"{name} {key}"] = digest(value)
    if run.rank == 0:
        with open(options.trace, "a", encoding="utf-8") as file:
            file.write(json.dumps({"word": word, "step": step, "wrap": wrap, "state": state}) + "\n")


began = run.restore(wrapped, optimizer, worlds=worlds)
if began:
    trace("restored", began)
worlds.seen = [*worlds.seen, run.world_size]
while worlds.seen != [2, 3, 2] or run.steps < began + 5:
    torch.manual_seed(run.steps)
    loss = wrapped(torch.randn(12, 7)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    trace("did", run.steps + 1)
    run.step(loss)
run.finish()
