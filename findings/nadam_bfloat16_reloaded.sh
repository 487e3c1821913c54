#!/usr/bin/env bash
# torch's NAdam: with bfloat16 parameters, loading its state rounds a number that it keeps in float32, and training
# differs.
#
# Versions: torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: a state dict that is loaded into an optimizer of the same class, for parameters of the same dtype, is what was
#   saved. Training goes on to the bit.
# Seen: NAdam keeps `mu_product`, the product of all momenta so far, in float32 whatever the parameters are.
#   `load_state_dict` converts each floating point tensor but `step` to its parameter's dtype. So `mu_product` comes
#   back in bfloat16, with three digits, and stays so. Within ten steps some weights differ from those of a training
#   without a restart. Nothing warns.
# Why it matters: a run that is restarted does not end with the bits of an undisturbed one, and the next checkpoint has
#   other dtypes than the one before.
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
import copy
import sys

import torch


def step(parameter, optimizer, steps, seed):
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        parameter.grad = torch.randn(parameter.shape, generator=random).bfloat16()
        optimizer.step()


def dtypes(optimizer):
    (state,) = optimizer.state.values()
    numbers = {key: one for key, one in state.items() if one.dim() == 0 and key != "step"}
    return {key: str(one.dtype).removeprefix("torch.") for key, one in numbers.items()}


def restart(kind):
    """Dtypes before and after a restart, and how many weights are others than without it, 10 steps later."""
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(torch.randn(10000).bfloat16())
    optimizer = kind([parameter], lr=0.1)
    step(parameter, optimizer, 3, seed=1)
    again = torch.nn.Parameter(parameter.detach().clone())
    resumed = kind([again], lr=0.1)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    before, after = dtypes(optimizer), dtypes(resumed)
    step(parameter, optimizer, 10, seed=2)
    step(again, resumed, 10, seed=2)
    return before, after, int((parameter != again).sum())


before, after, far = restart(torch.optim.NAdam)
_, _, of_adam = restart(torch.optim.Adam)
print(f"NAdam: {before} becomes {after}; 10 steps later {far} of 10000 weights differ, with Adam {of_adam}")
sys.exit((before, after) != ({"mu_product": "float32"}, {"mu_product": "bfloat16"}) or far == 0 or of_adam != 0)
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
