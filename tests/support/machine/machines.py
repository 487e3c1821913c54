"""Machines with a disk each, and the workers of a run that come to them."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Reader
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
from airflow_elastic.runtime.tiers.disk.recovery import recover
from airflow_elastic.runtime.tiers.disk.writer import DiskWriter
from airflow_elastic.runtime.tiers.shared_memory import DISK
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.sample_records import Account
from tests.support.training.saving import SavingWorker, objects

_writers = weakref.WeakKeyDictionary[SavingWorker, DiskWriter]()


class Machines:
    """As many machines as workers, each with a disk of its own; an attempt after the other comes to them."""

    def __init__(self, base: Path, count: int = 2) -> None:
        self.base, self.run, self.keep = base, str(base / "run"), 3
        self.folders = [base / f"disk-{number}" for number in range(count)]
        for folder in self.folders:
            folder.mkdir()

    def attempt(self, number: int, on: tuple[int, ...] = (0, 1), generation: int = 1) -> list[SavingWorker]:
        """Workers of an attempt, in the order of their numbers, on these machines."""
        workers = []
        for index, machine in enumerate(on):
            folder = str(self.folders[machine])
            policy = CheckpointPolicy(disk=folder, disk_keep_last=self.keep)
            worker = SavingWorker(
                self.run, attempt=number, index=index, of=len(on), policy=policy, generation=generation
            )
            worker.node.disk = WorkerDisk.of_run(folder, worker.store, index, self.keep, worker.node.pages)
            workers.append(worker)
        raise_fence(workers[0].store, number)
        return workers

    def files(self, name: str = "rank-*.bin") -> list[str]:
        found = [path for folder in self.folders for path in folder.rglob(name)]
        return sorted(f"{path.parent.name}/{path.name}" for path in found)


def save(workers: list[SavingWorker], step: int, seed: int, reason: str = DISK) -> None:
    """All of them, to their disks, as their threads do."""
    assert try_to_save(workers, step, seed, reason) == workers


def try_to_save(workers: list[SavingWorker], step: int, seed: int, reason: str) -> list[SavingWorker]:
    """The same; returns those that had a place for it."""
    saved = []
    for worker in workers:
        rank = worker.node.index
        account = Account(worker.node.attempt, worker.node.generation, rank, len(workers), 0, 100, ())
        position = Position(1, 10, step * 10)
        if worker.saver.save(
            objects(seed), step, position, reason=reason, metrics={"loss": 0.5}, account=account
        ):
            take(worker)
            saved.append(worker)
    return saved


def take(worker: SavingWorker) -> None:
    """As the thread of its agent does, of which each has one."""
    assert worker.node.disk is not None
    if worker not in _writers:
        _writers[worker] = DiskWriter(worker.node, worker.node.disk)
    _writers[worker]._look(heard=True)


def come(workers: list[SavingWorker]) -> list[bool]:
    """What agents do before their ranks start."""
    lead = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))

    def one(worker: SavingWorker) -> bool:
        store = lead if worker is workers[0] else TCPStore("127.0.0.1", lead.port, is_master=False)
        assert worker.node.members is not None
        return recover(worker.node, worker.node.members, store)

    with ThreadPoolExecutor(len(workers)) as pool:
        return [answer.result(60) for answer in [pool.submit(one, worker) for worker in workers]]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


class Far(FolderStore):
    """A store that is elsewhere. Attributes: asked: what was read of it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def local_path(self, key: str) -> Path | None:
        return None

    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]:
        self.asked.append(key)
        return super().stream(key, start, size)
