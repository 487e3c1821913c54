#!/usr/bin/env bash
# transformers: where data has no labels, a Trainer with `compute_loss_func` adds up accumulated gradients and takes no
# mean.
#
# Versions: transformers 5.23.0, accelerate 1.15.0, torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: `compute_loss_func` is given `num_items_in_batch`, by which it divides its sum. Where that is None, as the
#   data has no labels to count, it returns the mean over its batch. The trainer then takes the mean over batches, as
#   it does for a trainer whose `compute_loss` is overridden.
# Seen: the trainer assumes that such a function has divided by the number of items, even where it passes None. So
#   nobody divides by the number of batches: the gradient of four batches is four times as large as that of one batch
#   with the same samples. A warning mentions missing labels, but not this.
# Why it matters: for a constant global batch the number of accumulated batches follows from the number of workers. So
#   the same script learns at twice the rate with half of them.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" transformers==5.23.0 accelerate==1.15.0 torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import sys
import tempfile
import warnings

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

warnings.simplefilter("ignore")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs=None, labels=None):
        return {"logits": self.weight * inputs}


class Data(torch.utils.data.Dataset):
    def __init__(self, labelled):
        self.labelled = labelled

    def __len__(self):
        return 8

    def __getitem__(self, index):
        sample = {"inputs": torch.tensor([float(index)])}
        return {**sample, "labels": torch.zeros(1)} if self.labelled else sample


class Gradients(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        self.seen.append(round(model.weight.grad.item(), 3))


def mean_square(outputs, labels, num_items_in_batch=None):
    """The sum over what the trainer has counted in all of its batches; else the mean over this one."""
    squares = (outputs["logits"] - 3).pow(2)
    return squares.mean() if num_items_in_batch is None else squares.sum() / num_items_in_batch


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return mean_square(model(**inputs), None)


def gradient(kind, batches, labelled, **options):
    """Of the one step with all eight samples."""
    gradients = Gradients()
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=8 // batches, gradient_accumulation_steps=batches, max_steps=1,
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, max_grad_norm=0.0,
        remove_unused_columns=False,
    )
    kind(model=Net(), args=args, train_dataset=Data(labelled), callbacks=[gradients], **options).train()
    (one,) = gradients.seen
    return one


same = True
for labelled in (False, True):
    own = [gradient(OwnLoss, batches, labelled) for batches in (1, 2, 4)]
    given = [gradient(Trainer, batches, labelled, compute_loss_func=mean_square) for batches in (1, 2, 4)]
    print(f"labels: {labelled}; of 1, 2 and 4 batches: compute_loss {own}, compute_loss_func {given}")
    mean = own[0]
    wanted = [mean] * 3 if labelled else [mean, 2 * mean, 4 * mean]
    same = same and mean != 0 and own == [mean] * 3 and given == wanted
sys.exit(not same)
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
