"""Lightning's own callbacks change the shape of what is trained: `lightning_changing.py KIND OUT [--die=STEP]`.

`--trace FILE --epochs N`: for other numbers of ranks, as shape_trace.py has it.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning, ModelPruning, StochasticWeightAveraging
from shape_trace import Trace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from airflow_elastic.frameworks.lightning import ElasticTrainer


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8) if given.kind == "finetuning" else nn.Tanh()
        )
        self.head = nn.Linear(8, 1)

    def on_train_start(self) -> None:  # callbacks have restored
        if self.trainer.global_step:
            trace.restored(self.trainer.global_step, self, *self.trainer.optimizers)

    def on_train_batch_end(self, *_: Any) -> None:
        trace.did(self.trainer.global_step, self, *self.trainer.optimizers)

    def on_train_epoch_end(self) -> None:  # what callbacks do there belongs to the last step
        self.on_train_batch_end()

    def training_step(self, batch: Any, _: int) -> Any:
        return ((self.head(self.backbone(batch[0]).tanh()) - batch[1]) ** 2).mean()

    def configure_optimizers(self) -> Any:
        own = self.head.parameters() if given.kind in ("finetuning", "own") else self.parameters()
        one = torch.optim.AdamW(own, lr=0.01)
        return [one], [torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.9)]


class Own(Callback):
    """Thaws by itself, within an epoch, and prunes what it has thawed."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        pl_module.backbone.requires_grad_(False)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == 12 and not pl_module.backbone[0].weight.requires_grad:
            pl_module.backbone.requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": [*pl_module.backbone.parameters()], "lr": 0.001})


class Dying(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step in given.die and os.environ["AIRFLOW_ELASTIC_ATTEMPT"] == str(
            1 + given.die.index(trainer.global_step)
        ):
            os.kill(os.getpid(), signal.SIGKILL)


parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("out", type=Path)
parser.add_argument("--die", type=int, action="append", default=[])
parser.add_argument("--trace")
parser.add_argument("--epochs", type=int, default=6)
given = parser.parse_args()
trace = Trace(given.trace)
seed_everything(1)
kinds = {
    "finetuning": lambda: BackboneFinetuning(
        2, lambda epoch: 1.5, backbone_initial_lr=0.001, should_align=False
    ),
    "pruning": lambda: ModelPruning("l1_unstructured", amount=0.2, use_lottery_ticket_hypothesis=False),
    "global": lambda: ModelPruning("l1_unstructured", use_global_unstructured=True, amount=0.2),
    "averaging": lambda: StochasticWeightAveraging(0.005, swa_epoch_start=3, annealing_epochs=2),
    "own": Own,
}
x = torch.randn(160, 8)
trainer = ElasticTrainer(
    global_batch=32, max_epochs=given.epochs, logger=False, enable_progress_bar=False, accelerator="cpu",
    callbacks=[kinds[given.kind](), Dying()],
)  # fmt: skip
module = Net()
trainer.fit(module, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32))
if trainer.global_rank == 0:  # running means of batch norms are each rank's own after the last step
    torch.save(module.state_dict(), given.out)
if given.trace:
    trace.end(module)
trainer.finish()
