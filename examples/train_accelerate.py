"""Learns handwritten digits in a loop of its own, with Accelerate.

airflow-elastic run --workers 2 --min 1 --max 4 --uri runs/acc -- examples/train_accelerate.py --epochs 3
"""

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split

from airflow_elastic.frameworks.accelerate import ElasticRun

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

accelerator = Accelerator(cpu=not torch.cuda.is_available())
run = ElasticRun(accelerator)  # 1: joins the run
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
training, held_out = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.95)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)  # not the loader


def accuracy():
    pictures, labels = (column.to(accelerator.device) for column in held_out[:])
    with torch.no_grad():
        return (model(pictures).argmax(1) == labels).float().mean().item()


run.restore(model, optimizer, schedule)  # 2: goes on from the newest checkpoint, if there is one
loader = DataLoader(training, batch_size=32)  # the most a device takes at once
for epoch in run.epochs(options.epochs):  # 3: from the epoch that the run stands in
    for pictures, labels in run.loader(loader, global_batch=64):  # 4: each sample once
        with accelerator.accumulate(model):
            loss = cross_entropy(model(pictures), labels)
            run.backward(loss)  # 5: in place of the accelerator's
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        run.step()  # 6: reports, and saves when that is due
    measured = accuracy()
    if accelerator.is_main_process:
        print(f"epoch {epoch}: accuracy {measured:.4f}")
run.finish(accuracy=accuracy())  # 7: the last checkpoint, and results
