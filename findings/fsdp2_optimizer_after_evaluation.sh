#!/usr/bin/env bash
# torch's FSDP2: an optimizer that is made after an evaluation does not train the root module's own parameters.
#
# Versions: torch 2.15.0, Python 3.11, one process with gloo on a CPU (one shard; with two it is the same).
# Guess: a forward pass under `torch.no_grad()` leaves a model as it was. `model.parameters()` gives the sharded
#   parameters before it and after it.
# Seen: `fully_shard` does not shard the root again after a forward pass, as its backward pass would need the whole
#   parameters at once. Without a backward pass they stay whole: `model.parameters()` gives DTensors for the inner
#   modules and plain tensors for the root's own. An optimizer that is made then trains the inner modules. Its steps on
#   the root's parameters change temporary copies, which the next gather overwrites. New values that a script writes
#   into parameters then, such as averaged weights, are lost in the same way. There is no error and no warning, and
#   `state_dict()` has the old values.
# Why it matters: a script that evaluates what it has just restored, and then makes the optimizer or takes averaged
#   weights, trains without its head and its embeddings from there on.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def build(evaluate):
    torch.manual_seed(1)
    net = Net()
    fully_shard(net.body, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if evaluate:
        with torch.no_grad():
            net(inputs)
    return net


def weights(net):
    return {name: one.full_tensor().clone() for name, one in net.state_dict().items() if "weight" in name}


def which_change(evaluate):
    """The modules whose weights a step of an optimizer changes."""
    net = build(evaluate)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = weights(net)
    net(inputs).pow(2).mean().backward()
    optimizer.step()
    return [name for name, one in weights(net).items() if not torch.equal(one, before[name])]


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh, inputs = init_device_mesh("cpu", (1,)), torch.ones(2, 4)
kinds = {name: isinstance(one, DTensor) for name, one in build(evaluate=True).named_parameters()}
plain, evaluated = which_change(evaluate=False), which_change(evaluate=True)
net = build(evaluate=True)
with torch.no_grad():
    for one in net.parameters():
        one.zero_()
kept = [name for name, one in weights(net).items() if one.any()]
dist.destroy_process_group()
print(f"after an evaluation these parameters are whole: {[name for name, sharded in kinds.items() if not sharded]}")
print(f"a step changes {plain}; of an optimizer that was made after an evaluation {evaluated}")
print(f"all parameters set to zero after an evaluation; in the state dict these are not: {kept}")
both, body, head = ["body.weight", "head.weight"], ["body.weight"], ["head.weight"]
sys.exit(not (plain == both and evaluated == body and kept == head))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
