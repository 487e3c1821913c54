"""The history of a run for charts, and what follows from it: the recent pace, and a small curve for the list."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from airflow_elastic.adapters.records.history.read import CONTROLLER, TRAINING, Known, Stored, read_source
from airflow_elastic.core import history as charts
from airflow_elastic.core.history.fold import counting, fold, only
from airflow_elastic.core.history.join_conditions import joined_conditions
from airflow_elastic.core.overview.eta import paces
from airflow_elastic.spec.history import History, Part, Table
from airflow_elastic.views.cache import Reader

T = TypeVar("T")

#: It is written at most once a minute on a service, and every 10 s in a folder.
AGE, ENDED_AGE = 10.0, 60.0

#: A chart that is so old is shown at once, and drawn again behind the back.
STALE = 60.0

#: The pace is that of so many seconds, in so many parts.
RECENT_SECONDS, RECENT_PARTS = 1800.0, 60

SPARKS = 40

#: Names of series.
STEP, LOSS = "step", "loss"

MOST_POINTS, MOST_COLUMNS = 2000, 240


def of_overview(reader: Reader, *, stale: float = 0.0) -> tuple[list[float], list[dict[str, Any]]]:
    """What the overview shows of the history: the recent seconds per step, and the newest 500 conditions.

    Args:
        reader: of the run.
        stale: up to this age in seconds old ones are returned at once, and read again behind the back.
    """

    def made() -> tuple[list[float], list[dict[str, Any]]]:
        at, parts, _ = _counting(reader, [STEP])
        lasted = joined_conditions(one for part in parts for one in part.conditions)
        found = charts.conditions(History(at, controller=Part(conditions=lasted)))
        return _recent([part.table for part in parts], at), found[-500:]

    return reader.kept("history", made, _age(reader), stale=stale)


def _counting(reader: Reader, names: Iterable[str] | None) -> tuple[float, list[Part], list[str]]:
    """When the history was read; what counts of its parts, with these series alone; and the names of all series.

    Charts join the buckets themselves: to join them by age before would take longer than all the rest.
    """
    at, stored = reader.kept("stored", lambda: _stored(reader), _age(reader))
    wanted = charts.matching(names)
    parts, known = list[Part](), set[str]()
    for one in stored:
        recent = one.recent.values()
        known.update(name for part in (one.archive, *recent) for name in part.table.columns)
        parts += counting(only(one.archive, wanted), [only(part, wanted) for part in recent])
    return at, parts, sorted(known)


def _matrix(reader: Reader, name: str) -> History:
    """The history with one matrix and no series."""
    at, (training, _) = reader.kept("stored", lambda: _stored(reader), _age(reader))
    nothing = charts.matching(())
    recent = [only(part, nothing, name) for part in training.recent.values()]
    return History(at, fold(only(training.archive, nothing, name), recent))


def _stored(reader: Reader) -> tuple[float, list[Stored]]:
    at, store = reader.snapshot().at, reader.store
    return at, [
        read_source(store, source, reader.kept(f"archive {source}", Known, math.inf))
        for source in (TRAINING, CONTROLLER)
    ]


def _age(reader: Reader) -> float:
    return ENDED_AGE if reader.snapshot().state.ended else AGE


def _recent(tables: list[Table], until: float) -> list[float]:
    """Seconds per step in the last half hour, of each part of it."""
    since = until - RECENT_SECONDS
    chosen = charts.choose(tables, until, [STEP], since, until, RECENT_PARTS)["series"].get(STEP)
    if chosen is None:
        return []
    known = [
        (t, step)
        for t, step in zip(chosen["t"], chosen["max"], strict=True)
        if isinstance(step, float | int) and math.isfinite(step)
    ]
    return paces([t for t, _ in known], [step for _, step in known])


def sparkline(found: History) -> list[float]:
    """The loss so far, in at most 40 numbers, without those that are not finite."""
    chosen = charts.select(found, [LOSS], points=SPARKS)["series"].get(LOSS)
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
        at, parts, known = _counting(reader, wanted)
        tables = [part.table for part in parts]
        document = {**charts.choose(tables, at, wanted, *of), "names": known}
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
        found = _matrix(reader, charts.FORWARD_TIMES)
        if not found.training.matrices:
            found = _matrix(reader, charts.STEP_TIMES)
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
