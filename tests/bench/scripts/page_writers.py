"""What controllers and lead agents write while pages are open: `page_writers.py SECONDS WATCHED RUN...` (folders).

Every run gets a new status document each 5 s, and now and then a checkpoint in its journal. The watched one
gets what a training run gets: a report each second, and new numbers in its history each 10 s.
"""

import json
import sys
import time
from dataclasses import replace

from airflow_elastic.adapters.records.history import TRAINING, HistoryWriter
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import read_progress, write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.history.samples import training_rows, training_values
from airflow_elastic.spec.events import CheckpointCommitted

STATUS_SECONDS, CHECKPOINT_SECONDS = 5.0, 60.0

seconds, watched, *others = sys.argv[1:]
stores = [open_store(folder) for folder in (watched, *others)]
documents = [json.loads(store.get("status.json") or b"") for store in stores]
ends = [len(Journal(store).read()) for store in stores]
attempt = documents[0]["attempts"][-1]["number"]
progress = read_progress(stores[0], attempt)
assert progress is not None
history = HistoryWriter(stores[0], TRAINING, attempt=attempt)
print("ready", flush=True)

began = time.time()
turn, told = 0, 0.0
while (now := time.time()) < began + float(seconds):
    number = turn % len(stores)
    store, document = stores[number], documents[number]
    document["at"] = now
    store.put("status.json", json.dumps(document).encode(), durable=False)
    if turn // len(stores) % int(CHECKPOINT_SECONDS / STATUS_SECONDS) == number % int(
        CHECKPOINT_SECONDS / STATUS_SECONDS
    ):
        step = 2_000_000 + turn
        event = CheckpointCommitted(
            now, document["attempts"][-1]["number"], step, f"checkpoints/manifests/{step:012d}"
        )
        assert Journal(store).append(ends[number], event)
        ends[number] += 1
    if now - told >= 1.0:
        told, step = now, progress.step + 4
        ranks = tuple(replace(rank, step=step, at=now) for rank in progress.ranks)
        progress = replace(progress, at=now, step=step, moved_at=now, ranks=ranks)
        write_progress(stores[0], progress)
        history.add(now, training_values(progress), training_rows(progress))
        history.tend()
    turn += 1
    time.sleep(max(0.0, began + turn * STATUS_SECONDS / len(stores) - time.time()))
