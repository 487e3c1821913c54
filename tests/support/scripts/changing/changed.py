"""A small training under DDP whose shape changes after its tenth step. `--trace FILE`: what the whole state was.

Then the body thaws, an adapter comes, the head is pruned, the second embedding is tied no more, that of kinds grows, a
layer is dropped, the masks of one go, and one is parametrized. After the twelfth step another optimizer takes the place
of the first one. Rank 0 appends
`did STEP WORLD_SIZE DIGEST` after each step, and `restored STEP WORLD_SIZE DIGEST` when it goes on.
"""

import argparse
import hashlib
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, prune

import airflow_elastic.runtime as elastic
from airflow_elastic.spec.checkpoints.resumed import Resumed

CHANGED, SWAPPED = 10, 12

parser = argparse.ArgumentParser()
parser.add_argument("--trace", required=True)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--step-seconds", type=float, default=0.1)
options = parser.parse_args()


class Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 16) / 2), nn.Parameter(torch.zeros(16, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + x @ self.a.T @ self.b.T
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(32, 16), nn.Embedding(32, 16)
        self.second.weight = self.first.weight
        self.kinds = nn.Embedding(4, 16)
        self.gone, self.masked, self.side = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        prune.l1_unstructured(self.masked, "weight", amount=0.5)  # type: ignore[no-untyped-call]
        self.body, self.more = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kinds = self.kinds(x % self.kinds.num_embeddings)
        at = self.body(self.first(x) + self.second(x + 1) + kinds).tanh()
        at = self.side(self.masked(self.gone(at)).tanh())
        found: torch.Tensor = self.head(self.more(at).tanh())
        return found


def change() -> None:
    net.body.requires_grad_(True)
    net.more = Adapter(net.more)  # type: ignore[assignment]
    prune.l1_unstructured(net.head, "weight", amount=0.3)  # type: ignore[no-untyped-call]
    net.second.weight = nn.Parameter(net.first.weight.detach().clone())
    net.gone = nn.Identity()  # type: ignore[assignment]
    prune.remove(net.masked, "weight")  # type: ignore[no-untyped-call]
    parametrizations.weight_norm(net.side)
    norm = [*net.side.parametrizations["weight"].parameters()]  # type: ignore[union-attr]
    new = [*net.body.parameters(), net.more.a, net.more.b, net.second.weight, *norm]
    optimizer.add_param_group({"params": new, "lr": 0.01})
    grow(net.kinds, 2)


def grow(embedding: nn.Embedding, rows: int) -> None:
    """With what the optimizer keeps of it."""
    old, more = embedding.weight, torch.full((rows, embedding.embedding_dim), 0.5)
    new = nn.Parameter(torch.cat([old.detach(), more]))
    embedding.weight, embedding.num_embeddings = new, len(new)
    for group in optimizer.param_groups:
        group["params"] = [new if one is old else one for one in group["params"]]
    if kept := optimizer.state.pop(old, {}):
        optimizer.state[new] = {
            name: torch.cat([value, torch.zeros_like(more)]) if value.dim() else value
            for name, value in kept.items()
        }


def swap() -> None:
    global optimizer
    optimizer = torch.optim.Adamax([one for one in net.parameters() if one.requires_grad], lr=0.02)


def rebuild(resumed: Resumed) -> torch.optim.Optimizer:
    if resumed.step > CHANGED:
        change()
    if resumed.step > SWAPPED:
        swap()
    return optimizer


def digest() -> str:
    found = hashlib.sha256()
    for name, value in net.state_dict().items():
        found.update(f"{name} {tuple(value.shape)}".encode() + value.contiguous().numpy().tobytes())
    for parameter in net.parameters():
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


def trace(word: str, step: int) -> None:
    if run.rank == 0:
        with open(options.trace, "a", encoding="utf-8") as file:
            file.write(f"{word} {step} {run.world_size} {digest()}\n")


run = elastic.init()
torch.manual_seed(3)
net = Net()
optimizer: torch.optim.Optimizer = torch.optim.AdamW(
    [one for one in net.parameters() if one.requires_grad], lr=0.02
)
model = DistributedDataParallel(net)
if run.restore(model, optimizer, rebuild=rebuild):
    trace("restored", run.steps)
while run.steps < options.steps:
    if run.steps == CHANGED:
        change()
    if run.steps == SWAPPED:
        swap()
        run.replace(optimizer)
    torch.manual_seed(1000 * run.steps + run.rank)
    loss = model(torch.randint(0, 31, (8,))).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(options.step_seconds)
    trace("did", run.steps + 1)  # the state is that of the step to come
    run.step(loss)
run.finish()
