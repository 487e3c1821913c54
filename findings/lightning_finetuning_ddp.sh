#!/usr/bin/env bash
# Lightning's BackboneFinetuning, with DDP: layers that thaw are trained by each rank alone, and nothing says so.
#
# Versions: lightning 2.6.6, torch 2.15.0, Python 3.11, two processes with gloo on CPUs.
# Guess: from the epoch in which the backbone thaws on, its gradients are averaged over ranks as the head's are: after
#   each step all ranks have the same weights. Or an error or a warning says that they do not.
# Seen: DDP's reducer knows the parameters that required gradients when `fit` wrapped the model, which are the head's. The
#   backbone thaws in epoch 1, its optimizer steps with each rank's own gradients, and at the end ranks have the same head
#   and other backbones. `fit` ends without a word; a checkpoint keeps rank 0's backbone.
# The same model that is thawed from the beginning has equal weights on both ranks.
# Why it matters: what was trained depends on the number of ranks, and a checkpoint that one rank writes for all has the
#   work of one rank only.
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
import sys
import warnings

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning

warnings.simplefilter("ignore")


class Net(LightningModule):
    def __init__(self, frozen):
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh())
        self.head = torch.nn.Linear(8, 1)
        self.frozen = frozen

    def training_step(self, batch, index):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.head(self.backbone(inputs)), targets)

    def configure_optimizers(self):
        trained = self.head if self.frozen else self
        return torch.optim.SGD(trained.parameters(), lr=0.1)


def spread(module):
    """The largest difference of a weight between the two ranks."""
    mine = torch.cat([one.detach().flatten() for one in module.parameters()])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine)
    return float((both[0] - both[1]).abs().max())


def train(thaws):
    seed_everything(1, verbose=False)
    inputs = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    net = Net(frozen=thaws)
    trainer = Trainer(
        accelerator="cpu", devices=2, num_nodes=1, strategy="ddp", max_epochs=3, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=1)] if thaws else [],
    )
    trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=8))
    return spread(net.backbone), spread(net.head)


for thaws in (False, True):
    backbone, head = train(thaws)
    if dist.get_rank() == 0:
        kind = "thaws in epoch 1" if thaws else "is trained from the beginning"
        print(f"backbone {kind}: ranks differ by {backbone:.6f} in the backbone, by {head:.6f} in the head", flush=True)
        if (backbone > 0, head > 0) != (thaws, False):
            sys.exit(1)
END
"$T/venv/bin/torchrun" --standalone --nproc-per-node 2 "$T/train.py" 2>"$T/errors" || {
  tail -n 5 "$T/errors" >&2
  echo "not as described: see above" >&2
  exit 1
}
