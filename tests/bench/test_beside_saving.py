"""How fast training goes on while what it has saved is being written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.runtime.agent.worker import LOCALHOST
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.tiers.disk.copies import WorkerDisk
from airflow_elastic.runtime.tiers.disk.writer import DiskWriter
from airflow_elastic.runtime.tiers.peers.buddy_memory import BuddyMemory
from airflow_elastic.runtime.tiers.peers.buddy_sender import BuddySender
from airflow_elastic.runtime.tiers.peers.connection import Buddy
from airflow_elastic.runtime.tiers.shared_memory import DISK, MEMORY
from airflow_elastic.runtime.tiers.storage.writer import StorageWriter
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.bench.support.clients import a_run
from tests.bench.support.figures import count, heading, interval, median, verdict
from tests.bench.test_checkpoint import DEVICE, build, settle, size_of
from tests.support.training.saving import SavingWorker

ROUNDS = count("ROUNDS", 5)
STEP_SECONDS = 0.01
EVERY_SECONDS = {"s3": count("EVERY", 60)}  # one save, at the least; else one after the other

#: Why a state is saved for there, and the word of a rank's page that tells of it.
SIGNS = {"folder": ("script", shared_page.KEPT), "s3": ("script", shared_page.KEPT)}
SIGNS |= {"disk": (DISK, shared_page.ON_DISK), "neighbour": (MEMORY, shared_page.GIVEN)}


@contextmanager
def process(work: Callable[[], None]) -> Iterator[int]:
    """A process of its own, killed in the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def calibrated() -> Callable[[], None]:
    """One step: products of matrices, by one thread or the GPU, that take about as long as asked for."""
    torch.set_num_threads(1)
    side = 256 if DEVICE.type == "cpu" else 1024
    matrix, out = torch.rand(side, side, device=DEVICE), torch.empty(side, side, device=DEVICE)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(matrix, matrix, out=out)
        settle()

    multiply(50)
    began = time.perf_counter()
    multiply(50)
    each = (time.perf_counter() - began) / 50
    return partial(multiply, max(1, round(STEP_SECONDS / each)))


def _told(step: Callable[[], None], words: memoryview[float]) -> Callable[[], None]:
    """The same, told as a script's are: what is sent beside them depends on how long they take."""

    def told() -> None:
        began = time.monotonic()
        step()
        words[shared_page.STEPPING] += time.monotonic() - began
        words[shared_page.STEP] += 1

    return told


def serve_for_ever(worker: SavingWorker, where: str) -> None:
    """What its agent does; and a neighbour's."""
    follower: DiskWriter | BuddySender | None = None
    if worker.node.disk is not None:
        follower = DiskWriter(worker.node, worker.node.disk)
    elif where == "neighbour":
        worker.node.keeper, theirs = BuddyMemory(LOCALHOST, 1), BuddyMemory(LOCALHOST, 1)
        worker.node.neighbour = Buddy(1, 1, theirs.place)
        follower = BuddySender(worker.node)
    if follower is not None:
        follower.start()
    StorageWriter(worker.node, follower.news if follower is not None else lambda: None).start()
    while True:
        signal.pause()


def train_for_ever(step: Callable[[], None]) -> None:
    while True:
        step()


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", SIGNS)
def test_training_beside_writing(where: str, tmp_path: Path) -> None:
    """`disk`: of the worker's machine; `neighbour`: half of it, to another worker's memory. Nothing goes to storage."""
    with a_run("s3" if where == "s3" else "folder", tmp_path) as uri:
        objects = build()
        heading(f"steps of {STEP_SECONDS} s while {size_of(objects) / 1e9:.3f} GB are written to a {where}")
        # An S3 server of this machine would compete with training itself, where no processor is to spare.
        # A process of our own making has no GPU.
        for ranks in (1,) if where == "s3" or DEVICE.type == "cuda" else (1, 2):
            _measure(uri, objects, ranks, where, tmp_path / "disk")


def _measure(uri: str, objects: Stateful, ranks: int, where: str, disk: Path) -> None:
    (reason, done), every = SIGNS[where], EVERY_SECONDS.get(where, 0)
    policy = CheckpointPolicy(keep_last=1, buddies=where == "neighbour")
    worker = SavingWorker(uri, attempt=ranks, of=1 + policy.buddies, policy=policy)
    if where == "disk":
        disk.mkdir(exist_ok=True)
        worker.node.disk = WorkerDisk.of_run(str(disk), worker.store, 0, pages=worker.node.pages)
    untold, number = calibrated(), 0
    step = _told(untold, worker.words)
    shares: list[float] = []
    seconds: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(process(lambda: serve_for_ever(worker, where)))
        for _ in range(ranks - 1):
            stack.enter_context(process(lambda: train_for_ever(untold)))
        for round_ in range(ROUNDS + 1):
            before = _steps(step, _two_seconds)
            number += 1
            worker.saver.save(objects, number, Position(), reason=reason, metrics={})
            began = time.perf_counter()
            during = _steps(step, lambda _, number=number: worker.words[done] == number)
            took = time.perf_counter() - began
            after = _steps(step, _two_seconds)
            if round_:  # the first one makes memory
                shares.append(100 * during / ((before + after) / 2))
                seconds.append(took)
            _steps(step, lambda _, since=began: time.perf_counter() - since > every)  # type: ignore[misc]
    busy = "every processor trains" if ranks >= (os.cpu_count() or 1) else "a processor to spare"
    print(
        f"  {ranks} training, {busy}: {median(shares):.1f} % of the steps {interval([s - 100 for s in shares], '%')}, "
        f"written within {median(seconds):.2f} s"
    )
    verdict("training slower by", 100 - median(shares), 5, " %")


def _two_seconds(elapsed: float) -> bool:
    return elapsed >= 2.0


def _steps(step: Callable[[], None], over: Callable[[float], bool]) -> float:
    """Steps a second until it is over."""
    done, began = 0, time.perf_counter()
    while not over(time.perf_counter() - began):
        step()
        done += 1
    return done / (time.perf_counter() - began)
