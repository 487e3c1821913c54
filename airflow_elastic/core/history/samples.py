"""What the history keeps of a report of progress."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_elastic.core.goodput import goodput, goodput_share
from airflow_elastic.core.units import NON_FINITE

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress, WorkerUsage

#: What is kept of each worker: fields of `WorkerUsage`.
USAGE = (
    "cpu",
    "memory_bytes",
    "gpu_utilisation",
    "gpu_memory_bytes",
    "received_bytes_per_second",
    "sent_bytes_per_second",
    "state_bytes",
)

#: Ranks whose step times differ by more do not wait for each other.
APART = 1.5

#: The most metrics of a script that are kept, and the longest names.
MOST_METRICS, MOST_LETTERS = 256, 200


def training_values(progress: Progress) -> dict[str, float]:
    """The numbers of all ranks together, by the names of their series.

    Ranks that have not done a step yet report step 0, also those that will go on from a checkpoint. So there is no step
    before the first one.
    """
    newest = progress.stretches[-1] if progress.stretches else None
    found: dict[str, float] = {
        "world_size": progress.world_size,
        "attempt": progress.attempt,
        "generation": newest.generation if newest else 0,
    }
    if newest is None or (newest.first_step_at is None and progress.attached):
        return found
    found["step"], found["epoch"] = progress.step, progress.epoch
    found["samples_per_second"] = progress.samples_per_second
    if progress.loss is not None:
        found["loss"] = progress.loss
    if timed := [rank for rank in progress.ranks if rank.step_seconds > 0]:
        slowest = max(timed, key=lambda rank: rank.step_seconds)
        found["step_seconds"] = statistics.median(rank.step_seconds for rank in timed)
        found["slowest_seconds"] = slowest.step_seconds
        found["slowest_rank"] = slowest.rank
    for name in list(progress.metrics)[:MOST_METRICS]:
        found[f"metrics.{name[:MOST_LETTERS]}"] = progress.metrics[name]
    for name in list(progress.odd)[:MOST_METRICS]:
        found[name[:MOST_LETTERS]] = NON_FINITE.get(progress.odd[name], math.nan)
    return found


def training_rows(progress: Progress) -> dict[str, dict[str, float]]:
    """How long each rank takes, by the name of the matrix.

    Ranks that wait for each other in each step have the same step time. So that of the forward pass is kept where it
    is known, which shows who is slow.
    """
    forward = {str(rank.rank): rank.forward_seconds for rank in progress.ranks if rank.forward_seconds > 0}
    steps = {str(rank.rank): rank.step_seconds for rank in progress.ranks if rank.step_seconds > 0}
    if not forward:
        return {"step_seconds": steps} if steps else {}
    apart = steps and max(steps.values()) > APART * min(steps.values())
    return {"forward_seconds": forward, **({"step_seconds": steps} if apart else {})}


def usage_rows(usage: Iterable[WorkerUsage]) -> dict[str, dict[str, float]]:
    """What each worker uses of its machine, by the names of the matrices."""
    found: dict[str, dict[str, float]] = {}
    for one in usage:
        for name in USAGE:
            if (value := getattr(one, name)) is not None:
                found.setdefault(name, {})[one.worker] = value
    return found


def controller_values(state: RunState, progress: Progress | None, now: float) -> dict[str, float]:
    """What the controller knows of a run at `now` (epoch seconds), by the names of its series."""
    spent = goodput(state, progress, now)
    return {
        "goodput": goodput_share(spent),
        "workers": state.attempt.workers,
        "target_workers": state.target,
        "restarts": state.restarts_used,
        **{f"seconds.{row}": seconds for row, seconds in spent.items() if row != "wall"},
    }


def has_moved(progress: Progress, former: Progress | None) -> bool:
    """Whether any rank has reported since: a report is repeated while ranks are dead, or read their checkpoint."""
    return former is None or _marks(progress) != _marks(former)


def _marks(progress: Progress) -> Mapping[int, tuple[float, int]]:
    return {rank.rank: (rank.at, rank.step) for rank in progress.ranks}
