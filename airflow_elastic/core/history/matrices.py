"""Numbers of each worker or rank in buckets of time: adding values, and joining buckets."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import compress

from airflow_elastic.core.history.retention import MATRIX, Retention, plan
from airflow_elastic.spec.history import Matrix

#: The most rows of a matrix: those that had a value last remain.
MOST_ROWS = 1024

_NAN = float("nan")


def add(
    matrix: Matrix, t: float, values: Mapping[str, float], attempt: int = 0, width: float = 10.0
) -> Matrix:
    """The matrix with a value for each row, at a time (epoch seconds). Its arrays may change in place."""
    start = math.floor(t / width) * width
    numbers = array("f", [_as_float(values.get(row, _NAN)) for row in matrix.rows])
    if len(values) > sum(1 for row in matrix.rows if row in values):
        one = Matrix(
            tuple(values),
            array("d", [start]),
            array("I", [1]),
            array("I", [attempt]),
            array("f", map(_as_float, values.values())),
            array("f", map(_as_float, values.values())),
        )
        return join([matrix, one], lambda at: at)
    if matrix.t and start <= matrix.t[-1]:  # the newest bucket; also if the clock was set back
        base, count = (len(matrix.t) - 1) * len(matrix.rows), matrix.count[-1]
        matrix.count[-1], matrix.attempt[-1] = count + 1, max(attempt, matrix.attempt[-1])
        for i, value in enumerate(numbers):
            old = matrix.mean[base + i]
            matrix.mean[base + i] = _joined_mean(old, count, value, 1)
            matrix.max[base + i] = _higher(matrix.max[base + i], value)
        return matrix
    matrix.t.append(start)
    matrix.count.append(1)
    matrix.attempt.append(attempt)
    matrix.mean.extend(numbers)
    matrix.max.extend(numbers)
    return matrix


def between(matrix: Matrix, since: float, until: float) -> Matrix:
    """The buckets that begin from `since` on and before `until`."""
    first, last = bisect.bisect_left(matrix.t, since), bisect.bisect_left(matrix.t, until)
    if (first, last) == (0, len(matrix.t)):
        return matrix
    n = len(matrix.rows)
    return Matrix(
        matrix.rows,
        matrix.t[first:last],
        matrix.count[first:last],
        matrix.attempt[first:last],
        matrix.mean[first * n : last * n],
        matrix.max[first * n : last * n],
    )


def kept(matrix: Matrix, keep: Sequence[bool]) -> Matrix:
    """Only some buckets: those for which `keep` is true."""
    if all(keep):
        return matrix
    cells = [wanted for wanted in keep for _ in matrix.rows]
    return Matrix(
        matrix.rows,
        array("d", compress(matrix.t, keep)),
        array("I", compress(matrix.count, keep)),
        array("I", compress(matrix.attempt, keep)),
        array("f", compress(matrix.mean, cells)),
        array("f", compress(matrix.max, cells)),
    )


def joined_with_age(matrices: Sequence[Matrix], keep: Retention = MATRIX) -> Matrix:
    """All these matrices as one, with buckets as wide as their age asks for."""
    filled = [one for one in matrices if one.t]
    if not filled:
        return Matrix()
    target = plan(min(one.t[0] for one in filled), max(one.t[-1] for one in filled), keep)
    return join(filled, target.bucket)


def join(matrices: Sequence[Matrix], bucket: Callable[[float], float]) -> Matrix:
    """All these matrices as one. `bucket` gives the start of the new bucket of a time."""
    rows = _rows(matrices)
    places = {row: i for i, row in enumerate(rows)}
    groups: dict[float, list[tuple[int, int]]] = {}
    for number, one in enumerate(matrices):
        for i, t in enumerate(one.t):
            groups.setdefault(bucket(t), []).append((number, i))
    result = Matrix(rows, array("d", sorted(groups)))
    same = [one.rows == rows for one in matrices]
    to = [[places.get(row, -1) for row in one.rows] for one in matrices]
    for start in result.t:
        group = groups[start]
        result.attempt.append(max(matrices[number].attempt[i] for number, i in group))
        total = sum(matrices[number].count[i] for number, i in group)
        result.count.append(min(total, 2**32 - 1))
        if len(group) == 1 and same[group[0][0]]:
            number, i = group[0]
            result.mean.extend(matrices[number].mean[i * len(rows) : (i + 1) * len(rows)])
            result.max.extend(matrices[number].max[i * len(rows) : (i + 1) * len(rows)])
            continue
        mean, high = array("f", [_NAN]) * len(rows), array("f", [_NAN]) * len(rows)
        before = 0
        for number, i in group:
            one, base = matrices[number], i * len(matrices[number].rows)
            for k, place in enumerate(to[number]):
                if place >= 0:
                    mean[place] = _joined_mean(mean[place], before, one.mean[base + k], one.count[i])
                    high[place] = _higher(high[place], one.max[base + k])
            before += one.count[i]
        result.mean.extend(mean)
        result.max.extend(high)
    return result


def _rows(matrices: Sequence[Matrix]) -> tuple[str, ...]:
    """The rows of all, in the order of their numbers; of too many those that had a value last."""
    rows = dict.fromkeys(row for one in matrices for row in one.rows)
    if len(rows) > MOST_ROWS:
        last = dict.fromkeys(rows, float("-inf"))
        for one in matrices:
            for i, row in enumerate(one.rows):
                cells = one.mean[i :: len(one.rows)]
                seen = (
                    t
                    for t, value in zip(reversed(one.t), reversed(cells), strict=True)
                    if not math.isnan(value)
                )
                last[row] = max(last[row], next(seen, float("-inf")))
        rows = dict.fromkeys(sorted(rows, key=lambda row: -last[row])[:MOST_ROWS])
    return tuple(sorted(rows, key=_order))


def _order(row: str) -> tuple[str, int, str]:
    """`node-10` comes after `node-9`."""
    head, _, tail = row.rpartition("-")
    return (head, int(tail), "") if tail.isdecimal() else (row, 0, row)


def _joined_mean(a: float, a_count: int, b: float, b_count: int) -> float:
    if math.isnan(a):
        return b
    if math.isnan(b) or a == b:
        return a
    return _as_float(a + (b - a) * (b_count / max(1, a_count + b_count)))


def _higher(a: float, b: float) -> float:
    return a if math.isnan(b) or a >= b else b


def _as_float(value: float) -> float:
    """A number that 32 bits can hold: beyond their range it is infinite."""
    if abs(value) > 3.4e38:
        return math.copysign(math.inf, value)
    return value
