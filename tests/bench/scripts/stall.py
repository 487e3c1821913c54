"""One of the ranks that save a model sharded by FSDP2: how long does that stop them?

`stall.py RUN_URI ROUNDS MEGABYTES`, with torch's environment of a rank. Rank 0 prints JSON. Each rank has a worker of
its own, as on machines that each have a GPU.
"""

import json
import sys
from functools import partial

import torch
import torch.distributed as dist

from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from tests.bench.scripts.sharded import build, join, together
from tests.support.training.saving import SavingWorker

uri, rounds, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ranks = join()
objects = build(megabytes)
worker = SavingWorker(uri, index=ranks.rank, of=ranks.world_size, keep_last=1)
saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words)
floats = saver._plan(objects).kept_bytes // 4
source, target = torch.ones(floats), torch.ones(floats)

plans, copies, saves = [], [], []
for number in range(rounds + 2):
    save = partial(saver.save, objects, number, Position(), reason="script", metrics={})
    plans.append(together(partial(saver._plan, objects)))
    copies.append(together(partial(target.copy_, source)))
    saves.append(together(save))
    worker.persister.flush()
if ranks.rank == 0:
    # The first round has memory mapped, and two compare what ranks have alike.
    print(json.dumps({"bytes": 4 * floats, "plan": plans[2:], "copy": copies[2:], "save": saves[2:]}))
dist.destroy_process_group()
