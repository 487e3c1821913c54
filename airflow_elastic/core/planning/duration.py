"""How long the rest of a training takes with one number of workers, with its spread."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.core.checkpoints.save_interval import EXPECTED_SECONDS, Interval, save_interval

if TYPE_CHECKING:
    from airflow_elastic.core.planning.known import Known
    from airflow_elastic.core.scaling.throughput import Fit
    from airflow_elastic.spec.run import RunSpec

#: Relative spread of a step time: at a measured number of workers, between measured ones, and beyond all of them. They
#: count where the fit itself is closer than that.
MEASURED, BETWEEN, BEYOND = 0.05, 0.15, 0.3


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds until the training is done, and where they go.

    Attributes:
        seconds: the expected value.
        low: with faster steps, and no failure.
        high: with slower steps, and more failures.
        stepping: in steps.
        saving: training stands still for saves.
        starting: the first start.
        failing: repeated steps and further starts after failures.
    """

    seconds: float
    low: float
    high: float
    stepping: float
    saving: float
    starting: float
    failing: float


def duration(spec: RunSpec, known: Known, curve: Fit, workers: int, steps: int) -> Duration:
    """The time for so many steps.

    Args:
        spec: the run.
        known: the times. What is unknown counts as 0; the plan says so.
        curve: step times.
        workers: their number.
        steps: that are left.
    """
    each = curve.step_seconds(workers)
    stepping = steps * each
    interval = interval_now(spec, known, workers, each)
    saves = stepping / interval if interval else 0.0
    saving = saves * (known.save_seconds or 0.0)
    starting = known.start_seconds or 0.0
    # A failure costs the steps since the last save, on average half an interval, and a new start.
    lost = (interval or 0.0) / 2 + starting
    failures = (stepping + saving) / seconds_between_failures(known, workers) if known.worker_hours else 0.0
    failing = failures * lost
    apart = spread(curve, workers)
    seconds = stepping + saving + starting + failing
    low = (stepping + saving) * (1 - apart) + starting
    high = (stepping + saving) * (1 + apart) + starting + (failures + 2 * math.sqrt(failures)) * lost
    return Duration(seconds, low, high, stepping, saving, starting, failing)


def spread(curve: Fit, workers: int) -> float:
    """The relative spread of the step time with so many workers."""
    if workers in curve.sizes:
        return max(curve.spread, MEASURED)
    within = len(curve.sizes) > 1 and curve.sizes[0] < workers < curve.sizes[-1]
    return max(curve.spread, BETWEEN if within else BEYOND)


def seconds_between_failures(known: Known, workers: int) -> float:
    """From one failure to the next: each worker fails by itself, so more of them fail more often."""
    return (known.worker_hours * 3600.0 / workers + EXPECTED_SECONDS) / (known.failures + 1)


def interval_now(spec: RunSpec, known: Known, workers: int, step_seconds: float) -> float | None:
    """Seconds between two saves, as the specification has it; None if it cannot be known."""
    policy = spec.checkpoint
    if policy.auto_interval:
        best = interval_best(known, workers)
        return best.seconds if best is not None else None
    by_steps = policy.every_steps * step_seconds if policy.every_steps is not None else None
    every = [value for value in (by_steps, policy.seconds) if value is not None]
    return max(min(every), step_seconds) if every else None


def interval_best(known: Known, workers: int) -> Interval | None:
    """The best time between two saves; None if the cost of a save is unknown."""
    if known.save_seconds is None:
        return None
    between = seconds_between_failures(known, workers)
    return save_interval(known.save_seconds, known.written_seconds or 0.0, between)
