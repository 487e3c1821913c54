"""What the history costs: processor time of the lead agent, beside ranks whose steps take 10 ms.

Ranks do nothing for it. So all that a step can lose is the processor time of the agent, if it has none of its own.
Each figure is that time as a share of the time of training. Reports are as real ones, one a second; the clock is not.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.host.usage import ProcessMeter
from airflow_elastic.adapters.records.history import TRAINING, HistoryWriter, read_history
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.core.history import select
from airflow_elastic.core.history.samples import training_rows, training_values, usage_rows
from airflow_elastic.runtime.agent.reporting.usage import SECONDS
from airflow_elastic.spec.status import Progress, RankReport, WorkerUsage
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.support.builders import at_step
from tests.support.histories import fill

pytestmark = pytest.mark.bench

ROUNDS = count("HISTORY_ROUNDS", 5)
MINUTES = count("HISTORY_MINUTES", 70)  # a fold is among them
START = 1_790_000_040.0


def report(second: int, workers: int, ranks: int, chance: random.Random) -> Progress:
    told = tuple(
        RankReport(
            i, f"node-{i * workers // ranks}", second * 100, START + second, chance.gauss(0.01, 0.0005)
        )
        for i in range(ranks)
    )
    used = tuple(
        WorkerUsage(
            f"node-{i}", START + second // 10 * 10, "here", (), 1.5, 10**9, 0.9, 10**10, 1e8, 1e8, 10**9
        )
        for i in range(workers)
    )
    metrics = {f"m{i}": chance.random() for i in range(8)}
    return replace(at_step(second * 100, ranks=told, metrics=metrics, loss=chance.random()), usage=used)


@pytest.mark.parametrize(("workers", "ranks"), [(2, 2), (8, 64), (256, 1024)])
def test_processor_time_of_the_lead_agent(tmp_path: Path, workers: int, ranks: int) -> None:
    """With and without the history, in turns of the same second: the difference is its cost."""
    heading(
        f"history of {workers} workers with {ranks} ranks: the lead agent's processor time, {MINUTES} minutes"
    )
    shares = []
    for turn in range(ROUNDS):
        now, chance, spent = [START], random.Random(turn), 0.0
        store = FolderStore(tmp_path / str(turn))
        writer = HistoryWriter(store, TRAINING, attempt=1, now=lambda now=now: now[0])  # type: ignore[misc]
        # Large jobs run on services, whose reports come every 3 seconds.
        pause = 1 if workers < 100 else 3
        for second in range(0, MINUTES * 60, pause):
            now[0] = START + second
            told = report(second, workers, ranks, chance)
            began = time.thread_time()
            rows = training_rows(told) | (usage_rows(told.usage) if second % 10 < pause else {})
            writer.add(now[0], training_values(told), rows)
            writer.tend()
            spent += time.thread_time() - began
        shares.append(100 * spent / (MINUTES * 60))
    print(f"  {spread(shares, '% of one processor')}", flush=True)
    verdict("cost of the history for a step of 10 ms", median(shares), 0.2, " %")


def test_processor_time_of_measuring_a_worker() -> None:
    heading(f"usage of a worker: processor time of its agent, one measurement in {SECONDS:.0f} s")
    meter, shares = ProcessMeter(), []
    for _ in range(5 * ROUNDS):
        began = time.thread_time()
        meter.measure([os.getpid()])
        shares.append(100 * (time.thread_time() - began) / SECONDS)
    print(f"  {spread(shares, '% of one processor')}", flush=True)
    verdict("cost of measuring a worker", median(shares), 0.2, " %")


def test_reading_30_days(tmp_path: Path) -> None:
    heading("a history of 30 days, 8 workers with 16 ranks: reading it, and choosing six series for a chart")
    store = FolderStore(tmp_path)
    fill(store, days=30, workers=8, ranks=16)
    names = ["loss", "samples_per_second", "world_size", "goodput", "step_seconds", "step"]
    read, chosen = [], []
    for _ in range(3 * ROUNDS):
        began = time.perf_counter()
        history = read_history(store)
        between = time.perf_counter()
        select(history, names)
        read.append(between - began)
        chosen.append(time.perf_counter() - between)
    print(f"  read:   {spread(read, 'ms', 1000)}", flush=True)
    print(f"  choose: {spread(chosen, 'ms', 1000)}", flush=True)
    print(f"  stored: {sum(entry.size for entry in store.list()) / 1e6:.2f} MB", flush=True)
