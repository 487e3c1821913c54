#!/usr/bin/env bash
# torch's DCP: two saved groups of parameters load into an optimizer with one group, which silently takes the settings
# of the last.
#
# Versions: torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: another number of groups of parameters is refused, as `Optimizer.load_state_dict` refuses it; or parameters
#   keep the groups and the learning rates that the script gives them.
# Seen: `set_optimizer_state_dict` looks for each parameter by its name and writes the settings of its saved group over
#   those of the group that it is in now. Where a group has parameters of two saved groups, the last one counts:
#   everything trains with the head's rate of 0.0001 and without weight decay. Nobody asked for that.
# Why it matters: groups change when a run is restarted with edited code, or when layers that were frozen at first have
#   a group of their own. A restart then trains layers with the rates of others.
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
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict


def groups(optimizer):
    return [(group["lr"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]


def one_group():
    return torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)


def two_groups():
    head = {"params": net[1].parameters(), "lr": 0.0001, "weight_decay": 0.0}
    return torch.optim.AdamW([{"params": net[0].parameters()}, head], lr=0.01, weight_decay=0.1)


net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
two, one = two_groups(), one_group()
print(f"saved (rate, decay, parameters): {groups(two)}")
print(f"the script has: {groups(one)}")
set_optimizer_state_dict(net, one, get_optimizer_state_dict(net, two))
print(f"after loading by DCP: {groups(one)}")
try:
    one_group().load_state_dict(two_groups().state_dict())
    plain = "nothing"
except ValueError as exc:
    plain = str(exc)
print(f"torch.optim itself says: {plain}")
same = groups(one) == [(0.0001, 0.0, 4)] and "different number of parameter groups" in plain
sys.exit(not same)
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
