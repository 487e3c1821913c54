#!/usr/bin/env bash
# Lightning: in a second `fit` of one Trainer `estimated_stepping_batches` includes the first one's steps, so schedules
# are too long.
#
# Versions: lightning 2.6.6, torch 2.15.0, Python 3.11, one process on a CPU.
# Guess: `estimated_stepping_batches`, which is there to size a schedule in `configure_optimizers`, is how many steps
#   this `fit` is going to make.
# Seen: a second `fit` makes new optimizers and schedules, and goes on counting epochs and steps. With the limit raised
#   from 2 to 4 epochs it trains for two. The estimate counts all four epochs. A schedule that is to fall to 0 over
#   that many steps ends half way. Without a raised limit a second model is not trained at all, and `fit` returns as
#   usual.
# Why it matters: a restart in the second training makes only that `fit`, so its process has the right schedule, and
#   the undisturbed process does not. The two end with different weights.
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
from lightning.pytorch import LightningModule, Trainer

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.rates, self.estimate = torch.nn.Linear(2, 1), [], None

    def training_step(self, batch, index):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        self.estimate = self.trainer.estimated_stepping_batches
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / self.estimate))
        return [optimizer], [{"scheduler": falling, "interval": "step"}]


def fit(trainer):
    """What was estimated, how many steps were made, and the rate that was to follow the last one."""
    net = Net()
    trainer.fit(net, data)
    return net.estimate, len(net.rates), round(1 - len(net.rates) / net.estimate, 3) if net.rates else None


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 2)), batch_size=8)
trainer = Trainer(
    accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)
first = fit(trainer)
unchanged = fit(trainer)
trainer.fit_loop.max_epochs = 4
raised = fit(trainer)
print(f"(estimate, steps made, rate at the end): first fit {first}, second {unchanged}, with the limit raised {raised}")
sys.exit(not (first == (8, 8, 0.0) and unchanged == (8, 0, None) and raised == (16, 8, 0.5)))
END
"$T/venv/bin/python" "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
