"""Times of a run, put together from the facts about itself and about runs that are alike."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.brain.evidence import of_kind, speeds_of
from airflow_elastic.core.brain.kind import training_of
from airflow_elastic.core.scaling.throughput import best_known

if TYPE_CHECKING:
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Speed


@dataclass(frozen=True, slots=True)
class Known:
    """What is known about the times of a run. Seconds; None: unknown.

    Attributes:
        runs: how many runs it rests on, with the run itself.
        speeds: seconds a step by number of workers.
        step: the newest step of the run; 0 of a new one.
        total_steps: the last step of the training.
        start_seconds: from the start of ranks to their first step.
        restore_seconds: to load a checkpoint; a part of a start.
        save_seconds: for how long a save stops the training.
        written_seconds: until a save is in storage.
        cost_seconds: for how long a change of the number of workers stops the training.
        worker_hours: workers times hours that were watched for failures.
        failures: how many there were.
        used_gpu_hours: ranks times hours that the run has used already.
        gpu_use: the median use of its GPUs, 0 to 1.
        cpu_use: processors that a worker uses in 95 % of the time.
    """

    runs: int = 0
    speeds: tuple[Speed, ...] = ()
    step: int = 0
    total_steps: int | None = None
    start_seconds: float | None = None
    restore_seconds: float | None = None
    save_seconds: float | None = None
    written_seconds: float | None = None
    cost_seconds: float | None = None
    worker_hours: float = 0.0
    failures: int = 0
    used_gpu_hours: float = 0.0
    gpu_use: float | None = None
    cpu_use: float | None = None


def known_of(spec: RunSpec, past: Iterable[Facts], own: Facts | None = None) -> Known:
    """What is known about a run.

    Args:
        spec: the run.
        past: facts about any runs; those that are alike count.
        own: facts about the run itself, if it has begun. They count before others. If it has succeeded, the plan is for
            another run like it.
    """
    uri = own.uri if own is not None else None
    begun = (
        own if own is not None and own.outcome != "succeeded" else None
    )  # else the plan is for another like it
    alike = tuple(one for one in of_kind(spec, past) if one.uri != uri)
    mine = [own] if own is not None else []
    every = [*alike, *mine]
    learnt = speeds_of(spec, alike)[0]
    return Known(
        runs=len(every),
        speeds=best_known(own.speeds if own is not None else (), learnt),
        step=begun.steps if begun is not None else 0,
        total_steps=_total(spec, alike, own),
        start_seconds=_median(every, mine, "start_seconds"),
        restore_seconds=_median(every, mine, "restore_seconds"),
        save_seconds=_median(every, mine, "save_seconds"),
        written_seconds=_median(every, mine, "written_seconds"),
        cost_seconds=_median(every, mine, "step_cost_seconds"),
        worker_hours=sum(one.timing.worker_hours for one in every),
        failures=sum(one.timing.failures for one in every),
        used_gpu_hours=begun.gpu_hours if begun is not None else 0.0,
        gpu_use=_use(every, "gpu_utilisation", "p50"),
        cpu_use=_use(every, "cpu", "p95"),
    )


def _median(every: Sequence[Facts], mine: Sequence[Facts], name: str) -> float | None:
    """The run's own value, or the median of the others."""
    for group in (mine, every):
        values = [value for one in group if (value := getattr(one.timing, name)) is not None]
        if values:
            return float(statistics.median(values))
    return None


def _use(every: Sequence[Facts], signal: str, name: str) -> float | None:
    values = [getattr(use, name) for one in every for use in one.uses if use.signal == signal]
    return float(statistics.median(values)) if values else None


def _total(spec: RunSpec, alike: Sequence[Facts], own: Facts | None) -> int | None:
    """The last step: as the run itself has said, or the newest run with equal arguments."""
    if own is not None:
        return own.total_steps
    training = training_of(spec)
    same = [one.total_steps for one in alike if one.training == training and one.total_steps is not None]
    return same[-1] if same else None
