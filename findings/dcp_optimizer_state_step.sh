#!/usr/bin/env bash
# torch's DCP: reading the state of an Adam that has made no step yet makes a step, and so changes the training.
#
# Versions: torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: `get_optimizer_state_dict` reads. Before the first step it returns an empty state and leaves the optimizer as
#   it was.
# Seen: it makes a step with gradients of zero and a rate of zero, to have something to return. Weights stay the same,
#   but Adam counts the step. After three real steps `step` is 4, the bias correction is one step ahead, and the
#   weights differ from those of the same training without the call.
# Why it matters: the first checkpoint of a run often comes before the optimizer's first step: a save as a worker
#   starts, a gradient scaler that leaves out its first steps, a second optimizer that begins later. Whether a save was
#   made then changes the training.
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
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def train(read_before):
    """Steps that Adam has counted, and weights, after three steps."""
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 1)
    before = net.weight.detach().clone()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    if read_before:
        get_optimizer_state_dict(net, optimizer)
    same = bool((net.weight == before).all())
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).pow(2).mean().backward()
        optimizer.step()
    return int(optimizer.state[net.weight]["step"]), net.weight.detach(), same


plain_steps, plain, _ = train(read_before=False)
read_steps, read, same = train(read_before=True)
far = float((plain - read).abs().max())
print(f"three steps: Adam has counted {plain_steps}; where its state was read before them: {read_steps}")
print(f"weights are the same right after the reading: {same}; after three steps they differ by {far:.6f}")
sys.exit(not ((plain_steps, read_steps, same) == (3, 4, True) and far > 0.001))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
