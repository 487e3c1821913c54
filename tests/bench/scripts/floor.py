"""The least that a restart takes: start a process, import what the script imports, load and verify the checkpoint.

`floor.py RUN_URI RANK WORLD_SIZE`: no meeting of ranks, no step. Prints the moment at which it was done.
"""

import sys
import time
from pathlib import Path

import torch
from objects import Collectives, Restorer, Stateful, WorkerCache, build
from sizes import ON_GPU

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.save.save import ORDER

uri, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model, optimizer = build()
collectives, room = Collectives(rank, world, None), WorkerCache(Path(uri), 1)
restorer = Restorer(open_store(uri), collectives, attempt=1, room=room)
manifest = restorer.restore(Stateful(model, (optimizer,), {}, left=frozenset({ORDER})))
assert manifest is not None, "there is no checkpoint to load"
if ON_GPU:
    torch.cuda.synchronize()
print(time.time())
