"""The signals of a run at one moment, from its report: what `load` may name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from airflow_elastic.core.history.samples import training_values

if TYPE_CHECKING:
    from airflow_elastic.spec.status import Progress


def readings(progress: Progress, each: Mapping[str, float]) -> dict[str, float]:
    """The signals by name. What is not reported, or not a number, is left out.

    Args:
        progress: the newest report.
        each: what a worker has: `cpu` in processors, `memory` in bytes; either may be left out.
    """
    found = {
        name: value
        for name, value in training_values(progress).items()
        if name in ("step_seconds", "samples_per_second") or name.startswith("metrics.")
    }
    usage = progress.usage
    if (cpu := _mean(one.cpu for one in usage)) is not None and each.get("cpu"):
        found["cpu"] = cpu / each["cpu"]
    if (memory := _mean(one.memory_bytes for one in usage)) is not None and each.get("memory"):
        found["memory"] = memory / each["memory"]
    if (gpu := _mean(one.gpu_utilisation for one in usage)) is not None:
        found["gpu"] = gpu
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
