"""How figures are printed: what was measured, its median, its spread, and how it compares."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], unit: str = "s", factor: float = 1.0) -> str:
    """Median, the middle half, and the extremes."""
    ordered = sorted(value * factor for value in values)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    return (
        f"median {statistics.median(ordered):.3f} {unit}  (half of them {low:.3f} to {high:.3f}, "
        f"all {ordered[0]:.3f} to {ordered[-1]:.3f}, n={len(ordered)})"
    )


def count(name: str, default: int) -> int:
    """How many of something: ELASTIC_BENCH_<NAME> makes a bench shorter or longer."""
    return int(os.environ.get(f"ELASTIC_BENCH_{name}", default))


def heading(text: str) -> None:
    load = os.getloadavg()[0]
    print(f"\n== {text}  [{os.cpu_count()} processors, load {load:.1f} at the start]", flush=True)


def verdict(what: str, value: float, goal: float, unit: str = "") -> None:
    """The goal is printed, not asserted: a figure depends on what else the machine does."""
    kept = "kept" if value <= goal else "MISSED"
    print(f"  goal: {what} <= {goal:g}{unit}: {value:.3g}{unit}, {kept}", flush=True)


def interval(values: Sequence[float], unit: str = "") -> str:
    """Where the true median lies with 95 % confidence, from the order of the values alone."""
    ordered, half = sorted(values), 0.98 * len(values) ** 0.5
    low = ordered[max(0, int(len(ordered) / 2 - half))]
    high = ordered[min(len(ordered) - 1, int(len(ordered) / 2 + half))]
    return f"(95 % certain: {low:+.2f} to {high:+.2f} {unit}, n={len(ordered)})"
