"""Series in buckets: adding values, and joining buckets without losing a minimum or maximum."""

from __future__ import annotations

import bisect
import math
import operator
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress, groupby
from typing import NamedTuple

from airflow_elastic.core.history.retention import SERIES, Retention, plan
from airflow_elastic.spec.history import Column, Table

#: The most values that the count of a bucket can say.
_MOST = 2**32 - 1

#: A bucket of a column: count, min, max, mean.
_Bucket = tuple[int, float, float, float]

#: So many neighbours are joined faster together than one by one.
_QUICK = 3


class _Span(NamedTuple):
    """Neighbouring buckets of a table, from `begin` on and before `end`."""

    table: int
    begin: int
    end: int


#: A bucket of the joined table: what it is made of. Or several of them, each the copy of a bucket.
_Run = list[_Span] | _Span


class TableBuilder:
    """A table that grows at its end. `table` is it so far; it changes with the next `add`."""

    def __init__(self, table: Table | None = None) -> None:
        self._t = table.t if table else array("d")
        self._columns = dict(table.columns) if table else {}

    @property
    def table(self) -> Table:
        """The table so far, with columns of equal length."""
        for column in self._columns.values():
            _pad(column, len(self._t))
        return Table(self._t, self._columns)

    def __len__(self) -> int:
        return len(self._t)

    def add(self, t: float, values: Mapping[str, float], width: float = 1.0, most: int | None = None) -> None:
        """Add a value for each name, at a time (epoch seconds).

        Args:
            t: the time.
            values: by the names of the series.
            width: of the buckets, in seconds.
            most: how many series there may be; others are left out.
        """
        start = math.floor(t / width) * width
        if self._t and start < self._t[-1]:  # the clock was set back
            one = TableBuilder()
            one.add(t, values, width)
            joined = join([self.table, one.table], lambda at: at)
            self._t, self._columns = joined.t, dict(joined.columns)
            return
        if not self._t or start > self._t[-1]:
            self._t.append(start)
        for name, value in values.items():
            if name not in self._columns:
                if most is not None and len(self._columns) >= most:
                    continue
                self._columns[name] = Column()
            column = self._columns[name]
            if len(column.count) == len(self._t):
                _replace_last(column, value)
            else:
                _pad(column, len(self._t) - 1)
                _append(column, (1, value, value, value))


def between(table: Table, since: float, until: float, names: Iterable[str] | None = None) -> Table:
    """The buckets that begin from `since` on and before `until`; `names`: only of these series."""
    first, last = bisect.bisect_left(table.t, since), bisect.bisect_left(table.t, until)
    chosen = table.columns if names is None else names
    if (first, last) == (0, len(table.t)) and names is None:
        return table
    return Table(table.t[first:last], {name: _cut(table.columns[name], first, last) for name in chosen})


def _cut(column: Column, first: int, last: int) -> Column:
    return Column(
        column.count[first:last], column.min[first:last], column.max[first:last], column.mean[first:last]
    )


def kept(table: Table, keep: Sequence[bool]) -> Table:
    """Only some buckets: those for which `keep` is true. A bucket that it does not mention is kept."""
    keep = [*keep, *[True] * (len(table.t) - len(keep))]
    if all(keep):
        return table
    return Table(
        array("d", compress(table.t, keep)),
        {
            name: Column(
                array("I", compress(one.count, keep)),
                array("d", compress(one.min, keep)),
                array("d", compress(one.max, keep)),
                array("d", compress(one.mean, keep)),
            )
            for name, one in table.columns.items()
        },
    )


def joined_with_age(tables: Sequence[Table], keep: Retention = SERIES) -> Table:
    """All these tables as one, with buckets as wide as their age asks for."""
    filled = [table for table in tables if table.t]
    if not filled:
        return Table()
    target = plan(min(table.t[0] for table in filled), max(table.t[-1] for table in filled), keep)
    return join(filled, target.bucket)


def join(tables: Sequence[Table], bucket: Callable[[float], float], names: Iterable[str] = ()) -> Table:
    """All these tables as one. `bucket` gives the start of the new bucket of a time; `names`: only these series."""
    groups: dict[float, list[_Span]] = {}
    for number, table in enumerate(tables):
        for start, places in groupby(range(len(table.t)), lambda i, t=table.t: bucket(t[i])):  # type: ignore[misc]
            first, *more = places
            groups.setdefault(start, []).append(_Span(number, first, first + 1 + len(more)))
    starts = sorted(groups)
    runs = _runs([groups[start] for start in starts])
    wanted = list(names) or list(dict.fromkeys(name for table in tables for name in table.columns))
    return Table(array("d", starts), {name: _join_column(name, tables, runs) for name in wanted})


def _runs(groups: list[list[_Span]]) -> list[_Run]:
    """The groups. Neighbours that are copied unchanged are one run."""
    found: list[_Run] = []
    for group in groups:
        number, begin, end = group[0]
        if len(group) > 1 or end - begin > 1:
            found.append(group)
            continue
        last = found[-1] if found else None
        if isinstance(last, _Span) and last.table == number and last.end == begin:
            found[-1] = last._replace(end=end)
        else:
            found.append(group[0])
    return found


def _join_column(name: str, tables: Sequence[Table], runs: list[_Run]) -> Column:
    result = Column()
    columns = [table.columns.get(name) for table in tables]
    length = 0
    for run in runs:
        if isinstance(run, _Span):
            number, begin, end = run
            column = columns[number]
            length += end - begin
            if column is not None:
                result.count.extend(column.count[begin:end])
                result.min.extend(column.min[begin:end])
                result.max.extend(column.max[begin:end])
                result.mean.extend(column.mean[begin:end])
        else:
            length += 1
            joined = None
            for number, begin, end in run:
                column = columns[number]
                one = None if column is None else _joined(column, begin, end)
                if one is not None:
                    joined = one if joined is None else combine(joined, one)
            if joined is not None:
                _append(result, joined)
        _pad(result, length)
    return result


def _joined(column: Column, begin: int, end: int) -> _Bucket | None:
    """Neighbours as one bucket: all at once, if each has a value and all are finite."""
    if end - begin >= _QUICK:
        counts = column.count[begin:end]
        if 0 not in counts:
            total = sum(counts)
            mean = sum(map(operator.mul, counts, column.mean[begin:end])) / total
            if math.isfinite(mean):
                low, high = min(column.min[begin:end]), max(column.max[begin:end])
                return min(total, _MOST), low, high, min(max(mean, low), high)
    joined = None
    for i in range(begin, end):
        if column.count[i]:
            one = (column.count[i], column.min[i], column.max[i], column.mean[i])
            joined = one if joined is None else combine(joined, one)
    return joined


def combine(a: _Bucket, b: _Bucket) -> _Bucket:
    """Two buckets as one. Each is (count, min, max, mean). NaN makes the mean NaN, and has no part in min and max."""
    count = a[0] + b[0]
    low = a[1] if a[1] <= b[1] or math.isnan(b[1]) else b[1]
    high = a[2] if a[2] >= b[2] or math.isnan(b[2]) else b[2]
    return min(count, _MOST), low, high, _mean(a[3], b[3], b[0] / count, low, high)


def _mean(a: float, b: float, share: float, low: float, high: float) -> float:
    """The mean of two means. `share` is the weight of the second; rounding never leads beyond the extremes."""
    if a == b:
        return a
    if math.isinf(a) or math.isinf(b):
        return a + b
    mean = a + (b - a) * share
    return mean if math.isnan(mean) else min(max(mean, low), high)


def _append(column: Column, bucket: _Bucket) -> None:
    column.count.append(bucket[0])
    column.min.append(bucket[1])
    column.max.append(bucket[2])
    column.mean.append(bucket[3])


def _replace_last(column: Column, value: float) -> None:
    last = (column.count[-1], column.min[-1], column.max[-1], column.mean[-1])
    bucket = combine(last, (1, value, value, value)) if last[0] else (1, value, value, value)
    column.count[-1], column.min[-1], column.max[-1], column.mean[-1] = bucket


def _pad(column: Column, length: int) -> None:
    missing = length - len(column.count)
    if missing > 0:
        column.count.frombytes(bytes(missing * column.count.itemsize))
        for numbers in (column.min, column.max, column.mean):
            numbers.frombytes(bytes(missing * numbers.itemsize))
