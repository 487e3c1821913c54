"""Learns handwritten digits with Lightning.

airflow-elastic run --workers 2 --min 1 --max 4 --uri runs/pl -- examples/train_lightning.py --epochs 3
"""

import argparse

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from airflow_elastic.frameworks.lightning import ElasticTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()


class Digits(LightningModule):
    """A small network for pictures of 64 pixels."""

    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        pictures, labels = batch
        return cross_entropy(self.network(pictures), labels)

    def validation_step(self, batch, batch_idx):
        pictures, labels = batch
        right = self.network(pictures).argmax(1) == labels
        self.log("accuracy", right.float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
training, held_out = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
torch.manual_seed(0)
trainer = ElasticTrainer(  # 1: in place of Lightning's
    global_batch=64,  # of all ranks together, however many there are
    max_epochs=options.epochs,
    logger=False,
    enable_progress_bar=False,
)
module, held_out = Digits(), DataLoader(held_out, batch_size=360)
trainer.fit(module, DataLoader(training, batch_size=32), held_out)  # the most a device takes at once
(results,) = trainer.validate(module, held_out)
trainer.finish(**results)  # 2: hands over the results
