"""Runs for the benches of pages: one that has trained for a month, and small ones of a day."""

from __future__ import annotations

import random
import time
from pathlib import Path

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy
from airflow_elastic.spec.status import Progress, RankReport, Stretch
from tests.support.builders import lost, spec
from tests.support.histories import DAY, fill
from tests.support.runs.watched import publish

#: What the tab *Overview* asks for.
CHARTS = (
    "loss,samples_per_second,step_seconds,slowest_seconds,world_size,workers,target_workers,goodput,metrics.*"
)


def a_month(folder: Path) -> None:
    """A run of 30 days on 64 ranks of 8 workers: a checkpoint each half hour, a lost worker each fifth day."""
    store, now = open_store(str(folder)), time.time()
    since = now - 30 * DAY
    events: list[ev.Event] = [
        ev.RunCreated(
            since, spec(name="month", restart=RestartPolicy(backoff_limit=20)), scales_in_place=True
        )
    ]
    for number in range(1, 7):
        begun = since + (number - 1) * 5 * DAY
        events.append(ev.AttemptSubmitted(begun + 5, number, f"job-a{number}"))
        for half in range(240):
            at, step = begun + half * 1800 + 60, number * 240 + half
            events.append(
                ev.CheckpointCommitted(at, number, step * 1000, f"checkpoints/manifests/{step:012d}")
            )
        if number < 6:
            events += [
                ev.WorkersEnded(begun + 5 * DAY - 60, number, lost()),
                ev.AttemptGone(begun + 5 * DAY - 50, number),
            ]
            events.append(ev.BackoffElapsed(begun + 5 * DAY - 40, number + 1))
    journal = Journal(store)
    for seq, event in enumerate(events):
        assert journal.append(seq, event)
    write_progress(store, report(6, since + 25 * DAY, 64))
    fill(store, days=30, workers=8, ranks=64, attempts=6, metrics=4)
    publish(store)


def report(attempt: int, since: float, ranks: int) -> Progress:
    now, chance = time.time(), random.Random(1)
    every = tuple(
        RankReport(rank, f"node-{rank // 8}", 1_900_000, now, chance.gauss(0.25, 0.01), forward_seconds=0.1)
        for rank in range(ranks)
    )
    stretch = Stretch(1, ranks, 8, since, since + 60, now, 0, 1_900_000, 1.0, 1.0)
    return Progress(
        attempt, now, 1_900_000, now, 3_000_000, world_size=ranks, stretches=(stretch,), ranks=every, loss=0.3
    )


def a_day(folder: Path, *, trains: bool) -> None:
    store, now = open_store(str(folder)), time.time()
    journal = Journal(store)
    events: list[ev.Event] = [
        ev.RunCreated(now - DAY, spec(name=folder.name), scales_in_place=True),
        ev.AttemptSubmitted(now - DAY + 5, 1, "job-a1"),
    ]
    if not trains:
        events.append(ev.RunEnded(now - 60, "succeeded", "training is complete"))
    for seq, event in enumerate(events):
        assert journal.append(seq, event)
    write_progress(store, report(1, now - DAY, 16))
    publish(store)
