"""A history as a long run would have it: N days, workers, ranks, attempts; made in a second and not in N days.

fill(open_store(uri), days=30, workers=8, ranks=16)
"""

from __future__ import annotations

import math
import random
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history import CONTROLLER, TRAINING
from airflow_elastic.core.goodput import ROWS
from airflow_elastic.core.history.retention import MATRIX, MINUTE, SERIES, Retention, plan
from airflow_elastic.spec import layout
from airflow_elastic.spec.history import Column, Condition, Matrix, Part, Table, encode_part

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

DAY = 86400.0

#: What is measured of each worker, with a usual value.
USAGE = {
    "cpu": 6.5,
    "memory_bytes": 21e9,
    "gpu_utilisation": 0.93,
    "gpu_memory_bytes": 61e9,
    "received_bytes_per_second": 3.1e8,
    "sent_bytes_per_second": 2.9e8,
    "state_bytes": 4.4e9,
}


def fill(store: Store, *, days: float = 30.0, until: float | None = None, **sizes: int) -> None:
    """Write a history that ends at `until` (epoch seconds; default: now). `sizes`: as of `training`."""
    until = time.time() if until is None else until
    both = {TRAINING: training(days, until, **sizes), CONTROLLER: controller(days, until, **sizes)}
    for source, (archive, recent) in both.items():
        store.create(layout.history_archive(source, 1), encode_part(archive))
        store.put(layout.history_recent(source, recent.attempt, recent.writer), encode_part(recent))


def training(
    days: float,
    until: float,
    *,
    workers: int = 4,
    ranks: int = 8,
    attempts: int = 3,
    metrics: int = 2,
    seed: int = 0,
) -> tuple[Part, Part]:
    """An archive, and what has come since the last full hour.

    Between two attempts there are some minutes without values. In the last attempt one rank is slow.
    """
    chance = random.Random(seed)
    since, cut = until - days * DAY, math.floor(until / 3600.0) * 3600.0
    borders = [since + (until - since) * i / attempts for i in range(attempts + 1)]
    begun = {i + 1: borders[i] for i in range(attempts)}

    def attempt(t: float) -> int:
        return sum(t >= at for at in begun.values())

    def silent(t: float) -> bool:
        return any(at - 600.0 < t < at for at in borders[1:-1])

    def share(t: float) -> float:
        return (t - since) / (until - since)

    series: dict[str, Callable[[float], float]] = {
        "step": lambda t: math.floor((t - since) * 4),
        "epoch": lambda t: math.floor(share(t) * 10),
        "loss": lambda t: 4.0 / (1.0 + 20.0 * share(t)) + 0.3 + chance.uniform(-0.05, 0.05),
        "samples_per_second": lambda t: chance.gauss(512.0, 9.0) * ranks / 8,
        "step_seconds": lambda t: chance.gauss(0.25, 0.004),
        "slowest_seconds": lambda t: chance.gauss(0.29, 0.01),
        "slowest_rank": lambda t: ranks - 1,
        "world_size": lambda t: ranks,
        "attempt": attempt,
        "generation": lambda t: 1.0,
        **{f"metrics.m{i}": lambda t, i=i: math.tanh(share(t) * (i + 1)) for i in range(metrics)},  # type: ignore[misc]
    }

    def matrices(begin: float, end: float) -> dict[str, Matrix]:
        starts = [t for t in times(begin, end, MATRIX, silent) if t >= begin]
        nodes, numbers = [f"node-{i}" for i in range(workers)], [str(i) for i in range(ranks)]

        def seconds(i: int, t: float) -> float:
            return chance.gauss(0.6 if i == ranks - 1 and attempt(t) == attempts else 0.25, 0.01)

        def used(usual: float) -> Callable[[int, float], float]:
            return lambda i, t: usual * chance.uniform(0.9, 1.05)

        return {
            **{name: matrix(nodes, starts, used(usual), attempt) for name, usual in USAGE.items()},
            "step_seconds": matrix(numbers, starts, seconds, attempt),
        }

    archive = Part(
        at=cut,
        begun=begun,
        includes={"lead": cut},
        table=table(times(since, cut, SERIES, silent), series),
        matrices=matrices(since, cut),
    )
    since_cut = [t for t in times(cut, until, SERIES, silent) if t >= cut]
    recent = Part(
        writer="lead",
        at=until,
        attempt=attempts,
        begun={attempts: begun[attempts]},
        table=table(since_cut, series),
        matrices=matrices(cut, until),
    )
    return archive, recent


def controller(
    days: float, until: float, *, workers: int = 4, attempts: int = 3, seed: int = 0, **_: int
) -> tuple[Part, Part]:
    """What a controller sees of the same run, with a wait before each attempt and a straggler at the end."""
    chance = random.Random(seed)
    since, cut = until - days * DAY, math.floor(until / 3600.0) * 3600.0
    borders = [since + (until - since) * i / attempts for i in range(attempts)]

    def restarts(t: float) -> float:
        return sum(t >= at for at in borders) - 1

    series: dict[str, Callable[[float], float]] = {
        "goodput": lambda t: 0.92 + chance.uniform(-0.01, 0.01),
        "workers": lambda t: workers,
        "target_workers": lambda t: workers,
        "restarts": restarts,
        **{f"seconds.{row}": lambda t, i=i: (t - since) / (2.0 ** (i + 1)) for i, row in enumerate(ROWS)},  # type: ignore[misc]
    }
    waits = [
        Condition("waiting", at - 600.0, at, "waiting for capacity: 1 of 4 workers", (f"node-{workers - 1}",))
        for at in borders
    ]
    slow = Condition("straggler", until - 1800.0, until, "rank 7 delays all others", ranks=(7,), open=True)
    archive = Part(
        at=cut, includes={"host": cut}, table=table(times(since, cut), series), conditions=tuple(waits)
    )
    recent = Part(
        writer="host",
        at=until,
        table=table([t for t in times(cut, until) if t >= cut], series),
        conditions=(slow,),
    )
    return archive, recent


def times(
    since: float, until: float, keep: Retention = SERIES, silent: Callable[[float], bool] = lambda t: False
) -> list[float]:
    """The starts of the buckets that a history of that time has."""
    buckets = plan(since, until, keep)
    found, t = [], buckets.bucket(since)
    while t < until:
        if not silent(t):
            found.append(t)
        step = (
            buckets.fine if t >= buckets.fine_from else MINUTE if t >= buckets.minutes_from else buckets.old
        )
        t = min([t + step, *(border for border in (buckets.minutes_from, buckets.fine_from) if t < border)])
    return found


def table(starts: Sequence[float], series: dict[str, Callable[[float], float]]) -> Table:
    """A table with one value of each series in each bucket, and its minimum and maximum a little beside it."""
    columns = {}
    for name, of in series.items():
        values = array("d", [of(t) for t in starts])
        columns[name] = Column(
            array("I", [5] * len(values)),
            array("d", [value - abs(value) * 0.01 for value in values]),
            array("d", [value + abs(value) * 0.01 for value in values]),
            values,
        )
    for exact in ("attempt", "generation", "world_size", "step", "workers", "target_workers", "restarts"):
        if exact in columns:
            values = columns[exact].mean
            columns[exact] = Column(columns[exact].count, values[:], values[:], values)
    return Table(array("d", starts), columns)


def matrix(
    rows: Sequence[str],
    starts: Sequence[float],
    of: Callable[[int, float], float],
    attempt: Callable[[float], int],
) -> Matrix:
    """A matrix with a value in each cell, and a maximum a little above it."""
    mean = array("f", [of(i, t) for t in starts for i in range(len(rows))])
    return Matrix(
        tuple(rows),
        array("d", starts),
        array("I", [5] * len(starts)),
        array("I", [attempt(t) for t in starts]),
        mean,
        array("f", [value * 1.02 for value in mean]),
    )
