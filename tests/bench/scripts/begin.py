"""Train a few steps of a small model, and tell when the first one was done, and the memory that is this rank's alone.

`begin.py FOLDER [--plain]`: with --plain, under torchrun, nothing of ours is imported. Writes `FOLDER/RANK.json`: `at`
(epoch seconds), `private` (bytes).
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
run: Any = None
if "--plain" in sys.argv:
    dist.init_process_group("gloo")
else:
    import airflow_elastic.runtime as elastic

    run = elastic.init()
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
if run is not None:
    run.restore(model, optimizer)
first = 0.0
for _ in range(50):
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    first = first or time.time()
    if run is not None:
        run.step(0.0)
lines = [line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()]
private = sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))
Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps({"at": first, "private": private}))
dist.barrier()  # while all of them live, each shares what it can
if run is not None:
    run.finish()
