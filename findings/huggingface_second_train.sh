#!/usr/bin/env bash
# transformers: a second `train()` of one Trainer starts everything again but the optimizer, which keeps its moments
# and steps.
#
# Versions: transformers 5.23.0, accelerate 1.15.0, torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: `train()` begins a training: with the model's first weights loaded again, as for the next fold of a
#   cross-validation, the second call repeats the first. Or it continues where the first one ended.
# Seen: neither. `global_step`, epochs and the learning-rate schedule, warm-up included, start again; the optimizer is
#   kept. Adam has counted 16 steps where 8 were made, and its moments are those of the fold before. The second
#   training ends with other weights than the first, and than a new Trainer.
# Why it matters: a script that is restarted between two folds makes one `train()` in each process, so it ends with
#   other weights than a script that was not restarted.
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
from transformers import Trainer, TrainingArguments

warnings.simplefilter("ignore")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, inputs=None):
        return {"loss": (self.layer(inputs) - 2).pow(2).mean()}


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"inputs": torch.tensor([index / 32, 1.0])}


def trainer(net):
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=8, num_train_epochs=2, learning_rate=0.1, warmup_steps=4,
        use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False,
    )
    return Trainer(model=net, args=args, train_dataset=Data())


def train(one):
    """Steps of the trainer, of its schedule and of Adam, and the weights."""
    one.model.load_state_dict(first)
    one.train()
    (counted,) = {int(state["step"]) for state in one.optimizer.state.values()}
    return one.state.global_step, one.lr_scheduler.last_epoch, counted, one.model.layer.weight.detach().clone()


torch.manual_seed(1)
net = Net()
first = {name: one.clone() for name, one in net.state_dict().items()}
kept = trainer(net)
*once, weights = train(kept)
*twice, others = train(kept)
*anew, new = train(trainer(net))
far = float((weights - others).abs().max())
print(f"steps of the trainer, its schedule and Adam: {once}, after the second call {twice}, with a new Trainer {anew}")
print(f"weights of the two calls differ by {far:.4f}; those of two Trainers are equal: {torch.equal(weights, new)}")
sys.exit(not (once == anew == [8, 8, 8] and twice == [8, 8, 16] and far > 0.001 and torch.equal(weights, new)))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
