"""The history of a run for charts, and what follows from it: the recent pace, and a small curve for the list."""

from __future__ import annotations

import math
from typing import Any

from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.core import history as charts
from airflow_elastic.core.overview.eta import paces
from airflow_elastic.spec.history import History
from airflow_elastic.views.cache import Reader

#: It is written at most once a minute on a service, and every 10 s in a folder.
AGE, ENDED_AGE = 5.0, 60.0

#: The pace is that of so many seconds, in so many parts.
RECENT_SECONDS, RECENT_PARTS = 1800.0, 60

SPARKS = 40


def history(reader: Reader) -> History:
    """The history of a run, as it was at most some seconds ago. Without one, it is empty."""
    snapshot = reader.snapshot()
    age = ENDED_AGE if snapshot.state.ended else AGE
    found: History = reader.kept("history", lambda: read_history(reader.store, snapshot.at), age)
    return found


def recent(found: History, until: float) -> list[float]:
    """Seconds per step in the last half hour, of each part of it."""
    chosen = charts.select(found, ["step"], until - RECENT_SECONDS, until, RECENT_PARTS)["series"].get("step")
    if chosen is None:
        return []
    known = [
        (t, step)
        for t, step in zip(chosen["t"], chosen["max"], strict=True)
        if isinstance(step, float | int) and math.isfinite(step)
    ]
    return paces([t for t, _ in known], [step for _, step in known])


def conditions(found: History) -> list[dict[str, Any]]:
    """What lasted for a while: the newest 500."""
    return charts.conditions(found)[-500:]


def sparkline(found: History) -> list[float]:
    """The loss so far, in at most 40 numbers, without those that are not finite."""
    chosen = charts.select(found, ["loss"], points=SPARKS)["series"].get("loss")
    return [value for value in (chosen or {"mean": []})["mean"] if isinstance(value, float)]


def charted(
    found: History, *, names: str = "", since: float | None, until: float | None, points: int
) -> dict[str, Any]:
    """Series for a chart.

    Args:
        found: the history.
        names: of series, or patterns such as `metrics.*`, with commas between them. Default: all.
        since: epoch seconds. None: from the beginning.
        until: epoch seconds. None: to the end.
        points: the most buckets, up to 2,000.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    return charts.select(found, wanted, _finite(since), _finite(until), max(1, min(points, 2000)))


def heatmap(found: History, *, since: float | None, until: float | None, columns: int) -> dict[str, Any]:
    """Step times of all ranks over time, in at most 240 columns."""
    return {
        "at": found.at,
        **charts.heatmap(found, _finite(since), _finite(until), max(1, min(columns, 240))),
    }


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None
