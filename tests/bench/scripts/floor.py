"""The least that a restart takes: start a process, import what the script imports, load and verify the checkpoint.

`floor.py RUN_URI RANK WORLD_SIZE`: no meeting of ranks, no step. Prints the moment at which it was done.
"""

import sys
import time
from pathlib import Path

from objects import Ranks, Restorer, Room, Stateful, build

from airflow_elastic.adapters.storage.open import open_store

uri, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model, optimizer = build()
restorer = Restorer(open_store(uri), Ranks(rank, world, None), attempt=1, room=Room(Path(uri), 1))
manifest = restorer.restore(Stateful(model, (optimizer,), {}))
assert manifest is not None, "there is no checkpoint to load"
print(time.time())
