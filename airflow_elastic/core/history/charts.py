"""What a chart needs of a history, as plain JSON values. Numbers that JSON does not have are words: "NaN"."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from airflow_elastic.core.history import matrices, tables
from airflow_elastic.core.history.quantile import quantile
from airflow_elastic.core.units import json_number
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.history import History, Matrix, Part, Table

#: After so long without news an open condition counts as ended. Seconds.
_FORGOTTEN_SECONDS = 900.0

#: The matrix that a heat map shows.
STEP_TIMES, FORWARD_TIMES = "step_seconds", "forward_seconds"


def select(
    history: History,
    names: Iterable[str] | None = None,
    since: float | None = None,
    until: float | None = None,
    points: int = 500,
) -> dict[str, Any]:
    """The series, with at most `points` buckets of one common list of times.

    Args:
        history: as read.
        names: series, or patterns as of file names: `metrics.*`. None: all.
        since: epoch seconds. None: from the beginning.
        until: epoch seconds. None: to the end.
        points: the most buckets; at least 1.

    Returns:
        `at`, `from`, `until`, `names` (all that there are), and `series`: for each name `t` (the start of each bucket,
        epoch seconds) and `mean`, `min`, `max`. None: there is no value in that bucket.
    """
    return choose([part.table for part in _parts(history)], history.at, names, since, until, points)


def choose(
    sources: Sequence[Table],
    at: float,
    names: Iterable[str] | None,
    since: float | None,
    until: float | None,
    points: int,
) -> dict[str, Any]:
    """The same from tables with buckets of their own. `at`: when they were read."""
    known = list(dict.fromkeys(name for table in sources for name in table.columns))
    is_wanted = matching(names)
    wanted = [name for name in known if is_wanted(name)]
    begin, end = _range(sources, at, since, until)
    after = math.nextafter(end, math.inf)
    cut = [
        tables.between(table, begin, after, [name for name in wanted if name in table.columns])
        for table in sources
        if any(name in table.columns for name in wanted)
    ]
    found = tables.join(cut, _bucketing(cut, begin, end, max(1, points)), wanted) if wanted else Table()
    t = list(found.t)
    return {
        "at": at,
        "from": begin,
        "until": end,
        "names": sorted(known),
        "series": {
            name: {
                "t": t,
                "mean": _numbers(column.mean, column.count),
                "min": _numbers(column.min, column.count),
                "max": _numbers(column.max, column.count),
            }
            for name, column in found.columns.items()
        },
    }


def matching(names: Iterable[str] | None) -> Callable[[str], bool]:
    """Whether the name of a series is one of these, or matches a pattern among them. None: each does."""
    patterns = None if names is None else list(names)

    def matches(name: str) -> bool:
        return patterns is None or any(name == one or fnmatch.fnmatchcase(name, one) for one in patterns)

    return matches


def newest(history: History) -> dict[str, tuple[float, float]]:
    """For each series its last time (epoch seconds) and the mean of its last bucket; for `step` the maximum."""
    found = {}
    for part in _parts(history):
        for name, column in part.table.columns.items():
            i = next((i for i in reversed(range(len(column.count))) if column.count[i]), None)
            if i is not None:
                found[name] = (part.table.t[i], column.max[i] if name == "step" else column.mean[i])
    return found


def matrix(
    history: History,
    name: str,
    since: float | None = None,
    until: float | None = None,
    columns: int = 240,
) -> dict[str, Any]:
    """One number for each worker or rank over time, with at most `columns` buckets.

    Args:
        history: as read.
        name: for example `cpu` (workers) or `step_seconds` (ranks).
        since: epoch seconds. None: from the beginning.
        until: epoch seconds. None: to the end.
        columns: the most buckets; at least 1.

    Returns:
        `t` has the start of each bucket, `rows` the names of workers or the numbers of ranks, as text. `mean` and `max`
        have a list for each row, with a number for each bucket. None: there is none.
    """
    found = _matrix(history, name, since, until, columns)
    n = len(found.rows)
    return {
        "t": list(found.t),
        "rows": list(found.rows),
        "mean": [_cells(found.mean[i::n]) for i in range(n)],
        "max": [_cells(found.max[i::n]) for i in range(n)],
    }


def heatmap(
    history: History, since: float | None = None, until: float | None = None, columns: int = 240
) -> dict[str, Any]:
    """How long all ranks take: `t`, `ranks`, `rows` (for each rank seconds or None), and of all cells `p50`, `p99`.

    `of` is `forward`, the time of a forward pass, where that is known; else `step`.
    """
    forward = FORWARD_TIMES in history.training.matrices
    found = matrix(history, FORWARD_TIMES if forward else STEP_TIMES, since, until, columns)
    cells = sorted(cell for row in found["mean"] for cell in row if isinstance(cell, float))
    return {
        "of": "forward" if forward else "step",
        "t": found["t"],
        "ranks": [int(row) for row in found["rows"]],
        "rows": found["mean"],
        "p50": quantile(cells, 0.5),
        "p99": quantile(cells, 0.99),
    }


def conditions(
    history: History, since: float | None = None, until: float | None = None
) -> list[dict[str, Any]]:
    """What lasted for a while, oldest first, with the fields of `Condition`. `until` is None while it lasts."""
    found = []
    for one in history.controller.conditions:
        lasts = one.open and history.at - one.until < _FORGOTTEN_SECONDS
        if (since is None or lasts or one.until >= since) and (until is None or one.since <= until):
            plain = encode(one)
            del plain["open"]
            found.append({**plain, "until": None if lasts else one.until})
    return found


def _parts(history: History) -> tuple[Part, Part]:
    return history.training, history.controller


def _range(
    sources: Sequence[Table], at: float, since: float | None, until: float | None
) -> tuple[float, float]:
    """The time to show: what is asked for, else all that there is."""
    times = [table.t for table in sources if table.t]
    begin = since if since is not None else min((t[0] for t in times), default=at)
    end = until if until is not None else max((t[-1] for t in times), default=at)
    return begin, max(begin, end)


def _bucketing(found: Sequence[Table], begin: float, end: float, points: int) -> Any:
    """How buckets are joined until there are at most `points`: not at all if they are few enough."""
    times = sorted({t for table in found for t in table.t})
    if len(times) <= points:
        return lambda t: t
    width = (end - begin) / points or 1.0
    first: dict[int, float] = {}
    for t in times:
        first.setdefault(min(points - 1, int((t - begin) / width)), t)
    return lambda t: first[min(points - 1, int((t - begin) / width))]


def _matrix(history: History, name: str, since: float | None, until: float | None, columns: int) -> Matrix:
    found = history.training.matrices.get(name, Matrix())
    begin = since if since is not None else (found.t[0] if found.t else history.at)
    end = until if until is not None else (found.t[-1] if found.t else history.at)
    found = matrices.between(found, begin, math.nextafter(end, math.inf))
    return matrices.join([found], _bucketing([Table(found.t)], begin, end, max(1, columns)))


def _numbers(values: Iterable[float], counts: Iterable[int]) -> list[float | str | None]:
    return [json_number(value) if count else None for value, count in zip(values, counts, strict=True)]


def _cells(values: Iterable[float]) -> list[float | str | None]:
    return [None if math.isnan(value) else json_number(value) for value in values]
