#!/usr/bin/env bash
# torch's FSDP2: `zero_grad` does not clear gradients that were accumulated without synchronisation.
#
# Versions: torch 2.15.0, Python 3.11, one process with gloo on a CPU (one shard; with two it is the same).
# Guess: `optimizer.zero_grad()` or `model.zero_grad()` before the next batch clears what was accumulated, as it does
#   with DDP in `no_sync`. So a script can discard a batch with a bad loss.
# Seen: after `set_requires_gradient_sync(False)` gradients add up in the unsharded parameters, which FSDP2 keeps
#   internally. `parameter.grad` is None meanwhile, so `zero_grad` finds nothing. The next synchronised backward pass
#   adds all of it: the discarded batch is in the gradient.
# Why it matters: fewer workers accumulate more batches for the same global batch. A loop that discards a bad batch, or
#   begins a step anew in the middle of an accumulation, trains on what it has discarded.
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
from torch.nn.parallel import DistributedDataParallel


def gradient(sharded, throws_away):
    """Of a batch of ones, behind a batch of hundreds that is thrown away, or that never was."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    net = fully_shard(net, mesh=mesh) if sharded else DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []
    if throws_away and sharded:
        net.set_requires_gradient_sync(False)
        net(torch.full((1, 1), 100.0)).sum().backward()
        seen = [one.grad for one in net.parameters()]
        net.set_requires_gradient_sync(True)
    elif throws_away:
        with net.no_sync():
            net(torch.full((1, 1), 100.0)).sum().backward()
    optimizer.zero_grad()
    net.zero_grad(set_to_none=True)
    net(torch.ones(1, 1)).sum().backward()
    (own,) = [one.grad.full_tensor() if sharded else one.grad for one in net.parameters()]
    return float(own), seen


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
ddp, _ = gradient(sharded=False, throws_away=True)
undisturbed, _ = gradient(sharded=True, throws_away=False)
thrown, seen = gradient(sharded=True, throws_away=True)
dist.destroy_process_group()
print(f"DDP: the gradient is {ddp} after a batch that was thrown away")
print(f"FSDP2: it is {undisturbed} without that batch, and {thrown} after it; what zero_grad saw was {seen}")
sys.exit(not ((ddp, undisturbed, thrown, seen) == (1.0, 1.0, 101.0, [None])))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
