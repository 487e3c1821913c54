"""A small training that FSDP2 shards unevenly. `--trace FILE`: what the whole state was, as a digest.

`--hybrid`: an even number of ranks shards it by two, and has it as often as there are pairs (HSDP).

Rank 0 appends `did STEP WORLD_SIZE DIGEST` after each step, and `restored STEP WORLD_SIZE DIGEST` when it goes on.
"""

import argparse
import hashlib
import time
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.checkpoint.format import row_bands

row_bands._LEAST_BYTES = 64  # or nothing of so small a model would be cut

parser = argparse.ArgumentParser()
parser.add_argument("--trace", required=True)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--hybrid", action="store_true")
options = parser.parse_args()


class Average:
    """Of the weights, sharded as they are: an object of the script's own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.seen: dict[str, int] = {}

    def update(self, step: int) -> None:
        self.seen[f"step {step}"] = step
        for name, value in self.model.named_parameters():
            self.weights[name].lerp_(value.detach(), 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.seen = state["weights"], state["seen"]


run = elastic.init()
torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)
)
mesh = None
if options.hybrid and run.world_size % 2 == 0:
    mesh = init_device_mesh("cpu", (run.world_size // 2, 2), mesh_dim_names=("replicate", "shard"))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
average = Average(model)


def whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def digest() -> str:
    found = hashlib.sha256()
    values = [value.detach() for value in model.parameters()] + list(average.weights.values())
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        values += [state[name] for name in sorted(state)]
    for value in values:
        found.update(whole(value).contiguous().numpy().tobytes())
    found.update(repr((schedule.state_dict(), sorted(average.seen.items()))).encode())
    return found.hexdigest()


def trace(word: str, step: int) -> None:
    line = f"{word} {step} {run.world_size} {digest()}\n"
    if run.rank == 0:
        with open(options.trace, "a", encoding="utf-8") as file:
            file.write(line)


if run.restore(model, optimizer, schedule=schedule, average=average):
    trace("restored", run.steps)
while run.steps < options.steps:
    torch.manual_seed(run.steps)
    loss = model(torch.randn(12, 7)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    average.update(run.steps)
    time.sleep(options.step_seconds)
    trace("did", run.steps + 1)  # the state is that of the step to come
    run.step(loss)
run.finish()
