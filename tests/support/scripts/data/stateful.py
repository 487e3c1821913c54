"""A small training on torchdata's StatefulDataLoader, which each rank has for its own part of the data.

Options: --epochs N; --step-seconds S; --out FILE: rank 0 writes a digest of all weights at the end; --samples FOLDER:
every rank appends which samples each of its steps consumed.
"""

import argparse
import hashlib
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import airflow_elastic.runtime as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--out")
parser.add_argument("--samples")
options = parser.parse_args()

EACH, BATCH = 80, 8

torch.set_num_threads(1)
run = elastic.init(total_steps=options.epochs * EACH // BATCH)
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
if run.world_size > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(100 + run.rank)
mine = torch.arange(run.rank * EACH, (run.rank + 1) * EACH).float().reshape(-1, 1)
loader = StatefulDataLoader(
    mine, batch_size=BATCH, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(run.rank)
)
run.restore(model, optimizer, data=loader)
while run.steps < options.epochs * EACH // BATCH:
    for x in loader:
        loss = ((model(x / 100) - x / 50) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.samples:
            with open(f"{options.samples}/{run.rank}", "a", encoding="utf-8") as file:
                file.write(f"{run.steps + 1} {' '.join(str(int(one)) for one in x)}\n")
        time.sleep(options.step_seconds)
        run.step(loss)
if options.out and run.rank == 0:
    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(weights)
run.finish()
