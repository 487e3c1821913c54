"""A small training that DDP carries on 2 ranks and FSDP2 on any other number. `--trace FILE`: what the whole state was.

It has a generator and a critic, with two optimizers each, and a teacher that is the generator's average. `--wrap` says
what carries it on any number of ranks. Rank 0 appends a line of JSON after each step, and one when it goes on: `word`
(did, restored), `step`, `wrap`, and by the name of each weight and of each optimizer state, as the bare models call
them, a digest of its bytes. It ends some steps after it has had 2, 3 and again 2 ranks.
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
parser.add_argument("--wrap", choices=("ddp", "fsdp"))
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
wrap = options.wrap or ("ddp" if run.world_size == 2 else "fsdp")


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3), torch.nn.LayerNorm(3)
    )


def wrapped(model: torch.nn.Sequential) -> torch.nn.Module:
    if wrap == "ddp":
        return DistributedDataParallel(model)
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def optimizers_of(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    own = [*model.parameters()]
    return [torch.optim.AdamW(some, lr=0.05) for some in (own[:3], own[3:])]


bare = {name: network() for name in ("generator", "critic", "teacher")}
models = {name: wrapped(model) for name, model in bare.items()}
optimizers = {name: optimizers_of(models[name]) for name in ("generator", "critic")}
worlds = Worlds()


def digest(value: torch.Tensor) -> str:
    whole = value.full_tensor() if isinstance(value, DTensor) else value
    about = f"{whole.dtype} {tuple(whole.shape)} "
    return about + hashlib.sha256(whole.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def trace(word: str, step: int) -> None:
    state = {}
    for model, own in bare.items():
        for name, parameter in own.named_parameters():
            state[f"{model}.{name}"] = digest(parameter)
            for optimizer in optimizers.get(model, ()):
                for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                    state[f"{model}.{name} {key}"] = digest(value)
    if run.rank == 0:
        with open(options.trace, "a", encoding="utf-8") as file:
            file.write(json.dumps({"word": word, "step": step, "wrap": wrap, "state": state}) + "\n")


first, second = optimizers["critic"]
began = run.restore(
    models["generator"],
    *optimizers["generator"],
    worlds=worlds,
    critic=models["critic"],
    critic_optimizer=first,
    critic_rest=second,
    teacher=models["teacher"],
)
if began:
    trace("restored", began)
worlds.seen = [*worlds.seen, run.world_size]
while worlds.seen != [2, 3, 2] or run.steps < began + 5:
    torch.manual_seed(run.steps)
    inputs = torch.randn(12, 7)
    loss = models["generator"](inputs).square().mean() + models["critic"](inputs).abs().mean()
    loss.backward()
    for optimizer in (each for some in optimizers.values() for each in some):
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for average, parameter in zip(
            bare["teacher"].parameters(), bare["generator"].parameters(), strict=True
        ):
            average.lerp_(parameter, 0.1)
    time.sleep(0.05)
    trace("did", run.steps + 1)
    run.step(loss)
run.finish()
