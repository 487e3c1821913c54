"""Measures what a worker uses of its machine, also the space of its state in memory and on disk."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.gpus import GpuMeter
from airflow_elastic.adapters.host.usage import NetworkMeter, ProcessMeter
from airflow_elastic.runtime.agent.worker import LOCALHOST
from airflow_elastic.runtime.tiers.disk.inventory import DiskInventory
from airflow_elastic.spec.status import WorkerUsage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_elastic.runtime.agent.worker import Worker

#: Between two measurements. One takes some milliseconds, of the agent and not of its ranks.
SECONDS = 10.0


class UsageMeter:
    """Measures a worker now and then.

    Args:
        node: the worker.
    """

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._processes, self._network = ProcessMeter(), NetworkMeter()
        self._gpus: GpuMeter | None = None
        self._disk: DiskInventory | None = None
        self._looked_at = float("-inf")
        self._alone = node.address != LOCALHOST  # in a pod, whose interfaces and GPUs are its own

    def look(self) -> None:
        """Measure, if it is time to; the result is `Worker.usage`."""
        node, ranks = self._node, dict(self._node.processes)
        if time.monotonic() - self._looked_at < SECONDS or not ranks:
            return
        self._looked_at = time.monotonic()
        used = self._processes.measure([os.getpid(), *(one.pid for one in ranks.values())])
        if self._gpus is None:
            self._gpus = GpuMeter()
        gpus = self._gpus.measure(None if self._alone else used.pids)
        if self._disk is None and node.disk is not None:
            self._disk = DiskInventory(node.disk.root)
        received, sent = self._network.measure() if self._alone else (None, None)
        node.usage = WorkerUsage(
            worker=f"node-{node.index}",
            at=time.time(),
            machine=os.environ.get("AIRFLOW_ELASTIC_MACHINE") or os.uname().nodename,
            ranks=tuple(sorted(ranks)),
            cpu=used.cpu,
            memory_bytes=used.memory_bytes,
            gpu_utilisation=None if gpus is None else gpus.utilisation,
            gpu_memory_bytes=None if gpus is None else gpus.memory_bytes,
            received_bytes_per_second=received,
            sent_bytes_per_second=sent,
            state_bytes=sum(_sizes(node)),
            on_disk=None if self._disk is None else self._disk.look(),
        )


def _sizes(node: Worker) -> Iterator[int]:
    """Bytes of the states in the memory of this worker, its own and its neighbour's, and on its disk."""
    for slots in node.slots.of:
        yield from (_allocated(os.fstat(slot.fileno())) for slot in slots)
    if node.keeper is not None:
        yield node.keeper.have_bytes
    if node.disk is not None:
        yield from _files(node.disk.root / f"node-{node.index}")


def _files(folder: Path) -> Iterator[int]:
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                yield _allocated(os.lstat(os.path.join(at, name)))
            except OSError:  # removed meanwhile
                continue


def _allocated(about: os.stat_result) -> int:
    return about.st_blocks * 512
