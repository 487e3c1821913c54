"""What a worker that stands by takes from a training: processor time, and memory that it shares with no other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.standby import Cost, cost, import_cost, processor_seconds

#: The ways that take turns. With `start: cold` the rank of a standby worker imports torch once it is needed.
WAYS: dict[str, dict[str, Any]] = {
    "without": {"standby": 0},
    "with": {"standby": 1},
    "with, start: cold": {"standby": 1, "cold": True},
}

#: The goals of a standby worker: processor seconds, and megabytes.
SECONDS, MEGABYTES = 0.2, 40


@pytest.mark.bench
@pytest.mark.real_start
@pytest.mark.timeout(3600)
async def test_standby_cost(tmp_path: Path) -> None:
    rounds, seconds = count("ROUNDS", 5), count("SECONDS", 5)
    heading(f"2 workers of 1 rank, and a standby worker for {seconds} s, {rounds} rounds in turns")
    costs: dict[str, list[Cost]] = {way: [] for way in WAYS}
    plain: list[tuple[float, int]] = []
    for number in range(rounds):
        plain.append(import_cost())
        for position, (way, how) in enumerate(WAYS.items()):
            costs[way].append(await cost(tmp_path / f"{number}-{position}", seconds=seconds, **how))
    for way, found in costs.items():
        print(f"  {way}")
        tell(found)
    print(f"  a process that imports the same: processor  {spread([one for one, _ in plain])}")
    print(f"  a process that imports the same: its memory {spread([one for _, one in plain], 'MB', 1e-6)}")
    used = [sum(one.until.values()) for one in costs["with"]]
    private = [sum(one.private.values()) for one in costs["with"]]
    over = median(used) / median([one for one, _ in plain])
    print(f"  processor time until it stands by, over that process: {over:.3f}")
    verdict("processor time until it stands by", median(used), SECONDS, " s")
    verdict("memory of its processes alone", median(private) / 1e6, MEGABYTES, " MB")


def tell(found: list[Cost]) -> None:
    for what in found[0].until:
        print(f"    {what + ' until it stands by':34}{spread([one.until[what] for one in found])}")
        print(f"    {what + ', its own memory':34}{spread([one.private[what] for one in found], 'MB', 1e-6)}")
    if found[0].until:
        print(f"    {'both, a minute of waiting':34}{spread([one.waiting for one in found])}")
    print(f"    {'all beside ranks until then':34}{spread([one.beside_until for one in found])}")
    print(f"    {'all beside ranks, a minute':34}{spread([one.beside for one in found])}", flush=True)


@pytest.mark.parametrize(
    ("cold", "processes"), [(False, {"agent", "fork server"}), (True, {"agent"})], ids=["forked", "cold"]
)
async def test_one_is_measured(cold: bool, processes: set[str], tmp_path: Path) -> None:
    found = await cost(tmp_path / "run", standby=1, cold=cold, seconds=0.5)
    assert found.until.keys() == found.private.keys() == processes
    assert all(0 < used < found.beside_until for used in found.until.values())
    assert 0 < found.waiting <= found.beside
    assert all(private > 0 for private in found.private.values())


def test_the_clock_of_a_process_is_read() -> None:
    before = time.process_time()
    told = processor_seconds(os.getpid())
    assert before <= told <= time.process_time()
