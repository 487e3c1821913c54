"""The history of a run for charts, and what follows from it: the recent pace, and a small curve for the list."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from airflow_elastic.adapters.records.history import read_history
from airflow_elastic.core import history as charts
from airflow_elastic.core.overview.eta import paces
from airflow_elastic.spec.history import History
from airflow_elastic.views.cache import Reader

T = TypeVar("T")

#: It is written at most once a minute on a service, and every 10 s in a folder.
AGE, ENDED_AGE = 10.0, 60.0

#: A chart that is so old is shown at once, and drawn again behind the back.
STALE = 60.0

#: The pace is that of so many seconds, in so many parts.
RECENT_SECONDS, RECENT_PARTS = 1800.0, 60

SPARKS = 40

MOST_POINTS, MOST_COLUMNS = 2000, 240


def history(reader: Reader, *, stale: float = 0.0) -> History:
    """The history of a run, as it was at most some seconds ago. Without one, it is empty.

    Args:
        reader: of the run.
        stale: up to this age in seconds an old one is returned at once, and read again behind the back.
    """
    at = reader.snapshot().at
    return reader.kept("history", lambda: read_history(reader.store, at), _age(reader), stale=stale)


def _age(reader: Reader) -> float:
    return ENDED_AGE if reader.snapshot().state.ended else AGE


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
    reader: Reader,
    form: Callable[[dict[str, Any]], T],
    *,
    names: str = "",
    since: float | None,
    until: float | None,
    points: int,
) -> T:
    """Series for a chart. All who ask for the same one within some seconds get the same.

    Args:
        reader: of the run.
        form: makes of the document what is kept and returned.
        names: of series, or patterns such as `metrics.*`, with commas between them. Default: all.
        since: epoch seconds. None: from the beginning.
        until: epoch seconds. None: to the end.
        points: the most buckets, up to 2,000.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()] or None
    of = (_finite(since), _finite(until), max(1, min(points, MOST_POINTS)))

    def made() -> T:
        document = charts.select(history(reader), wanted, *of)
        for series in document["series"].values():
            for name in ("mean", "min", "max"):
                series[name] = _short(series[name])
        return form(document)

    return reader.kept(f"charts {wanted} {of}", made, _age(reader), stale=STALE)


def heatmap(
    reader: Reader,
    form: Callable[[dict[str, Any]], T],
    *,
    since: float | None,
    until: float | None,
    columns: int,
) -> T:
    """Step times of all ranks over time, in at most 240 columns; see `charted`."""
    of = (_finite(since), _finite(until), max(1, min(columns, MOST_COLUMNS)))

    def made() -> T:
        found = history(reader)
        document = charts.heatmap(found, *of)
        return form({"at": found.at, **document, "rows": [_short(row) for row in document["rows"]]})

    return reader.kept(f"heatmap {of}", made, _age(reader), stale=STALE)


def _short(values: list[Any]) -> list[Any]:
    """Numbers with seven digits: more than a chart can show, and a third of the bytes."""
    return [
        value if not isinstance(value, float) or value.is_integer() else float(f"{value:.7g}")
        for value in values
    ]


def _finite(seconds: float | None) -> float | None:
    return seconds if seconds is not None and math.isfinite(seconds) else None
