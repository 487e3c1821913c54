"""Learns handwritten digits, on as many ranks as there are. The numbered lines are all that airflow-elastic asks for.

It also runs by itself: `python train_digits.py --data digits.npz --epochs 3`.
"""

import argparse
import io
import time

import numpy as np
import torch
from files import read
from network import network
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True, help="the data set, as data.py writes it: a path, or s3://")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--seed", type=int, default=0, help="of the order of the samples, and of dropout")
parser.add_argument("--step-seconds", type=float, default=0.0, help="let each step take so long, to watch it")
parser.add_argument("--slow-rank", type=int, help="this rank is slow, to see what is done about it")
options = parser.parse_args()

run = elastic.init()  # 1: joins the other ranks
torch.manual_seed(options.seed)
with np.load(io.BytesIO(read(options.data))) as stored:
    data = TensorDataset(torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]))
    validation = [
        torch.from_numpy(stored[name]).to(run.device) for name in ("validation_images", "validation_labels")
    ]
model = network().to(run.device)
if run.rank == options.slow_rank:
    model[0].register_forward_hook(lambda *_: time.sleep(0.5))
if run.world_size > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs, options.lr / 10)


def accuracy():
    images, labels = validation
    model.eval()
    with torch.inference_mode():
        right = (model(images).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


run.restore(model, optimizer, schedule=schedule)  # 2: goes on from the newest checkpoint, if there is one
print(f"rank {run.rank} of {run.world_size} begins at step {run.steps}")
for epoch in run.epochs(options.epochs):  # 3: from the epoch that the run stands in
    for images, labels in run.loader(data, global_batch=64, seed=options.seed):  # 4: each sample once
        began = time.monotonic()
        loss = cross_entropy(model(images.to(run.device)), labels.to(run.device))
        optimizer.zero_grad()
        (run.weight * loss).backward()
        optimizer.step()
        time.sleep(max(0.0, began + options.step_seconds - time.monotonic()))
        run.step(loss)  # 5: reports, and saves when that is due
    schedule.step()  # once for each epoch, however often the run is restarted
    measured = accuracy()
    run.report(accuracy=measured)  # an early stop looks at this
    if run.rank == 0:
        print(f"epoch {epoch}: accuracy {measured:.4f}")
run.finish(accuracy=accuracy())  # 6: the last checkpoint, and results
