"""One rank that saves a model sharded by FSDP2, or restores it at another world size and measures that.

`reshard.py RUN_URI save|restore|cold ROUNDS MEGABYTES ROOM`, with torch's environment of a rank. Rank 0 prints JSON.
`cold` restores from the disk: before each turn the kernel has to forget what it has of the files.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from tests.bench.scripts.sharded import build, join, together
from tests.bench.support.clients import Obstore
from tests.support.training.saving import SavingWorker

uri, what, rounds, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ranks = join()
rank, world = ranks.rank, ranks.world_size
objects = build(megabytes)


class Raw:
    """All bytes of the checkpoint's large files, each rank reading its share of them: less cannot be done."""

    def __init__(self) -> None:
        self._store = open_store(uri)
        entries = [entry for entry in self._store.list("checkpoints/data/") if entry.key.endswith(".bin")]
        self.whole = sum(entry.size for entry in entries)
        at, end = self.whole // world * rank, self.whole // world * (rank + 1)
        self._mine: list[tuple[str, int, int]] = []
        for entry in entries:
            low, high = max(0, at), min(entry.size, end)
            if low < high:
                self._mine.append((entry.key, low, high))
            at, end = at - entry.size, end - entry.size
        self._room = memoryview(bytearray(max((high - low for _, low, high in self._mine), default=0)))
        bucket, _, self._below = uri.removeprefix("s3://").partition("/")
        self._client = Obstore(bucket) if uri.startswith("s3://") else None

    def read(self) -> None:
        """Of files, into memory in use; of objects, by the fastest other client there is."""
        for key, low, high in self._mine:
            if self._client is not None:
                self._client.get(f"{self._below}/{key}", low, high)
                continue
            with Path(uri, key).open("rb", buffering=0) as file:
                file.seek(low)
                file.readinto(self._room[: high - low])

    def forget(self) -> None:
        """Have the kernel read the rank's share from the disk again."""
        for key in {key for key, _, _ in self._mine} if what == "cold" else ():
            with Path(uri, key).open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if what == "save":
    worker = SavingWorker(uri, index=rank, of=world)
    saver = Saver(ranks, generation=1, stage=worker.stage, words=worker.words)
    saver.save(objects, 1, Position(), reason="script", metrics={})
    worker.persister.flush()
    dist.barrier()
else:
    raw = Raw()
    processors = max(1, (os.cpu_count() or 1) // world)  # as the agent of a worker tells its ranks
    room = WorkerCache(Path(sys.argv[5]), 1, processors=processors)
    restorer = Restorer(open_store(uri), ranks, attempt=2, room=room)
    reads, restores = [], []
    for _ in range(rounds + 1):
        raw.forget()
        reads.append(together(raw.read))
        raw.forget()
        restores.append(together(lambda: restorer.restore(objects)))
    if rank == 0:
        print(json.dumps({"bytes": raw.whole, "read": reads[1:], "restore": restores[1:]}))
dist.destroy_process_group()
