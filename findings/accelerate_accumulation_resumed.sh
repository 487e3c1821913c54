#!/usr/bin/env bash
# Accelerate: where a state is loaded with another number of accumulation steps, the first optimizer step comes too
# early.
#
# Versions: accelerate 1.15.0, torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: a checkpoint that is saved right after an optimizer step begins a step: with `gradient_accumulation_steps=4`
#   the next one comes four batches later.
# Seen: `save_state` keeps how many batches were counted so far, `load_state` goes on with that number, and a step is
#   due whenever today's number of accumulation steps divides it. Saved after six batches with two for each step, and
#   loaded with four, the first step comes after two batches with half a gradient, and all later steps are shifted by
#   two batches. Only the end of a prepared loader resets the count.
# Why it matters: to keep the global batch while workers come and go, the number of accumulation steps follows from the
#   number of ranks. So this can happen with each restart at another world size.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" accelerate==1.15.0 torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import sys
import tempfile
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

warnings.simplefilter("ignore")


def begin(steps):
    """As a new process does."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    net = torch.nn.Linear(1, 1, bias=False)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 1)), batch_size=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return accelerator, *accelerator.prepare(net, optimizer, data)


def train(accelerator, net, optimizer, data, batches):
    """For each step: after how many batches it came, and the gradient. That of each batch is one."""
    steps = []
    for number, (inputs,) in enumerate(data, 1):
        with accelerator.accumulate(net):
            accelerator.backward(net(inputs).mean())
            if accelerator.sync_gradients:
                steps.append((number, round(net.weight.grad.item(), 3)))
            optimizer.step()
            optimizer.zero_grad()
        if number == batches:
            return steps


folder = tempfile.mkdtemp()
first = begin(2)
before = train(*first, 6)
first[0].save_state(folder)
resumed = begin(4)
resumed[0].load_state(folder)
after = train(*resumed, 12)
undisturbed = train(*begin(4), 12)
print(f"saved after these steps, of two batches each: {before}")
print(f"resumed with four batches a step: {after}")
print(f"begun with four batches a step: {undisturbed}")
wanted = [(2, 1.0), (4, 1.0), (6, 1.0)], [(2, 0.5), (6, 1.0), (10, 1.0)], [(4, 1.0), (8, 1.0), (12, 1.0)]
sys.exit((before, after, undisturbed) != wanted)
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
