"""A small network under Lightning's Trainer, with all that a resumed run has to put back."""

import time

import torch
from framework_options import (
    GLOBAL_BATCH,
    MOST,
    Points,
    leave_behind,
    network,
    optimizer_of,
    options,
    trained,
)
from lightning.pytorch import Callback, LightningDataModule, LightningModule

from airflow_elastic.frameworks.lightning import ElasticTrainer


class Regression(LightningModule):
    """Learns the function, and is validated on it."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.network(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.network(x), y), sync_dist=True)

    def on_train_epoch_end(self):
        self.trainer.datamodule.ended += 1

    def configure_optimizers(self):
        optimizer = optimizer_of(self)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}


class Data(LightningDataModule):
    """Remembers how many epochs it has been good for."""

    def __init__(self):
        super().__init__()
        self.ended = 0

    def train_dataloader(self):
        return torch.utils.data.DataLoader(Points(), batch_size=MOST)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(Points(), batch_size=50)

    def state_dict(self):
        return {"ended": self.ended}

    def load_state_dict(self, state_dict):
        self.ended = state_dict["ended"]


class Journal(Callback):
    """Takes its time over each step, and remembers which epochs have ended, and after which steps it was validated."""

    def __init__(self):
        self.ended, self.validated = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        time.sleep(options.step_seconds / 2)

    def on_train_epoch_end(self, trainer, pl_module):
        self.ended.append((trainer.current_epoch, trainer.global_step))

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)

    def state_dict(self):
        return {"ended": self.ended, "validated": self.validated}

    def load_state_dict(self, state_dict):
        self.ended, self.validated = state_dict["ended"], state_dict["validated"]


module, data, journal = Regression(), Data(), Journal()
trainer = ElasticTrainer(
    global_batch=GLOBAL_BATCH,
    max_epochs=options.epochs,
    accelerator="gpu" if options.gpu else "cpu",
    callbacks=[journal],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(module, datamodule=data)
trained()
if trainer.run.rank == 0:
    (schedule,) = trainer.lr_scheduler_configs
    rate = schedule.scheduler.last_epoch
    told = (journal.ended, journal.validated, data.ended)
    leave_behind(module, trainer.global_step, trainer.current_epoch, rate, *told)
(results,) = trainer.validate(module, datamodule=data, verbose=False)
trainer.finish(**results)
