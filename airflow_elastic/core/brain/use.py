"""What a worker of a run uses of its machine, by quantiles of its history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.spec.history import Matrix

#: What is learnt of each worker: fields of `WorkerUsage`.
SIGNALS = ("cpu", "memory_bytes", "gpu_utilisation", "gpu_memory_bytes")


@dataclass(frozen=True, slots=True)
class Use:
    """One signal over all workers of a run and all the time that they were seen.

    Attributes:
        signal: `cpu` (processors), `memory_bytes`, `gpu_utilisation` (0 to 1), `gpu_memory_bytes`.
        samples: how many values there were.
        p50: the median.
        p95: the value that it exceeds in a twentieth of the time.
        peak: the highest.
    """

    signal: str
    samples: int
    p50: float
    p95: float
    peak: float


def uses(matrices: Mapping[str, Matrix]) -> tuple[Use, ...]:
    """The use by signal, in the order of `SIGNALS`; without those that were never measured."""
    found = (_use(name, matrices[name]) for name in SIGNALS if name in matrices)
    return tuple(one for one in found if one is not None)


def quantile(values: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest value that has at least this share of the weight at or below it.

    Args:
        values: values with their weights, at least one.
        share: 0 to 1.
    """
    ordered = sorted(values)
    whole, seen = sum(weight for _, weight in ordered), 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= share * whole * (1 - 1e-12):
            return value
    return ordered[-1][0]


def _use(name: str, matrix: Matrix) -> Use | None:
    width = len(matrix.rows)
    values: list[tuple[float, float]] = []
    peak = -math.inf
    for i, count in enumerate(matrix.count):
        for row in range(width):
            mean, top = matrix.mean[i * width + row], matrix.max[i * width + row]
            if math.isfinite(mean):
                values.append((mean, float(count)))
                peak = max(peak, top if math.isfinite(top) else mean)
    if not values:
        return None
    return Use(name, len(values), quantile(values, 0.5), quantile(values, 0.95), peak)
