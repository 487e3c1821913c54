"""How much memory a worker takes for its saves, over the size of a state."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_elastic.runtime.checkpoint.save.save import Position
from tests.bench.support.clients import a_run
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.test_checkpoint import build, size_of
from tests.support.training.saving import SavingWorker

ROUNDS = count("ROUNDS", 5)


def own_bytes() -> int:
    """Of this process alone; slots are shared memory, and not among them."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["RssAnon"].split()[0]) * 1024


@contextmanager
def peak() -> Iterator[list[int]]:
    """The most of that meanwhile, looked at all the time."""
    most, done = [own_bytes()], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], own_bytes())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        done.set()
        looking.join()


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["folder", "s3"])
def test_memory_of_saves(where: str, tmp_path: Path) -> None:
    """The rank and its agent in one process: what is taken beside the model is theirs together."""
    with a_run(where, tmp_path) as uri:
        _measure(where, uri)


def _measure(where: str, uri: str) -> None:
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB saved to a {where}, {ROUNDS} rounds, two states in memory")
    worker = SavingWorker(uri, keep_last=1)
    before, peaks, slots = own_bytes(), list[float](), 0
    for number in range(ROUNDS + 1):
        with peak() as most:
            worker.saver.save(objects, number + 1, Position(), reason="script", metrics={})
            worker.persister.flush()
        slots = sum(os.fstat(slot.fileno()).st_blocks * 512 for slot in worker.node.slots.of[0])
        peaks.append((slots + most[0] - before) / size)
    print(f"  slots, of which each holds a state: {slots / size:.3f}x")
    print(f"  with all that saving and writing take beside, at the most: {spread(peaks[1:], 'x')}")
    verdict("memory of a worker, over its state", median(peaks[1:]), 2.1, "x")
