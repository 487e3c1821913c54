"""The smallest script that uses the runtime: hold.py STEPS [HOLD_FILE]; with HOLD_FILE it trains until that exists."""

import sys
import time
from pathlib import Path

import torch

import airflow_elastic.runtime as elastic

steps, hold = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
run = elastic.init(total_steps=steps)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.restore(model, optimizer)
print(f"training from {run.steps}", flush=True)
while run.steps < steps or (hold is not None and not hold.exists()):
    loss = model(torch.ones(2, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(loss)
    time.sleep(0.02)
run.finish(weight=float(model.weight.sum().detach()))
