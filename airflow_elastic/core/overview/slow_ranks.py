"""What ranks that hold all others up cost: the part of each step in which the others wait for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_elastic.core.overview.pace import median_seconds


def slow_ranks(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stragglers of a status document, with how long their forward pass takes against the others'.

    Returns:
        `ranks`, each with `rank` and `worker`; `forward_seconds` of the slowest, `others_seconds` of the others'
        median, `step_seconds` of a step. `lost_seconds` of each step would not be spent if they were as fast as the
        others. It counts the forward pass alone, so it is a lower bound. Numbers that are not known are None. None
        where no rank holds the others up.
    """
    slow = set(document.get("stragglers") or ())
    if not slow:
        return None
    reports = document.get("ranks") or []
    known = {report["rank"]: report.get("worker") for report in reports}
    forward = [_seconds(report) for report in reports if report["rank"] in slow]
    longest = max((value for value in forward if value is not None), default=None)
    others = median_seconds(_seconds(report) for report in reports if report["rank"] not in slow)
    step = median_seconds(report.get("step_seconds") for report in reports)
    lost = None
    if longest is not None and others is not None and step is not None and others < longest:
        lost = min(longest - others, step)
    return {
        "ranks": [{"rank": rank, "worker": known.get(rank)} for rank in sorted(slow)],
        "forward_seconds": longest,
        "others_seconds": others,
        "step_seconds": step,
        "lost_seconds": lost,
    }


def _seconds(report: Mapping[str, Any]) -> float | None:
    value = report.get("forward_seconds")
    return value if isinstance(value, int | float) and math.isfinite(value) and value > 0 else None
