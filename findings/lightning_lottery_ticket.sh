#!/usr/bin/env bash
# Lightning's ModelPruning with use_lottery_ticket_hypothesis: only the first pruning resets the weights.
#
# Versions: lightning 2.6.6, torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: whenever parameters are pruned, those that are left get the values back that they had before training, as the
#   callback's documentation says of the hypothesis.
# Seen: after the first pruning the weights are those from before training. After the second and the third they are what
#   training had made of them. The reset gives the parameter the very memory of the copy that the callback keeps, so the
#   next epoch trains that copy, too, and later resets copy a tensor onto itself. Nothing says so.
# Why it matters: after a restart that copy has memory of its own again. A restarted run that resets each time differs
#   from an undisturbed one that resets once.
#
# Exits 0 while that is so, 1 when it is not, 2 where it could not be tried.
set -euo pipefail
T=$(mktemp -d)
trap 'rm -rf "$T"' EXIT
{
  python3 -m venv "$T/venv"
  "$T/venv/bin/pip" install -q uv
  "$T/venv/bin/uv" pip install -q --python "$T/venv/bin/python" lightning==2.6.6 torch==2.15.0
} || exit 2

cat >"$T/train.py" <<'END'
import logging
import sys
import warnings

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelPruning

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Compare(Callback):
    """Behind the pruning: how far weights are from what they were before training."""

    def __init__(self, before):
        self.before, self.far = before, []

    def on_train_epoch_end(self, trainer, net):
        self.far.append(float((net.layer.weight_orig - self.before).abs().max()))


seed_everything(1, verbose=False)
net = Net()
pruning = ModelPruning(
    "l1_unstructured",
    parameters_to_prune=[(net.layer, "weight")],
    amount=0.1,
    use_lottery_ticket_hypothesis=True,
    prune_on_train_epoch_end=True,
)
compare = Compare(net.layer.weight.detach().clone())
data = torch.utils.data.TensorDataset(torch.randn(64, 8))
trainer = Trainer(
    accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[pruning, compare],
)
trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=8))
for number, far in enumerate(compare.far, 1):
    print(f"pruning {number}: weights are {far:.6f} away from what they were before training")
sys.exit(not (compare.far[0] == 0 and all(far > 0 for far in compare.far[1:])))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
