"""How fast training is with each number of workers: a curve through what was measured.

The time of a step is `fixed + divided / n + per_worker * (n - 1)`. The global batch is constant, so the computation is
divided among the workers; what each step costs anyway stays; synchronisation grows with the workers. The terms
are those of Pollux (OSDI '21, section 3.2). They are added instead of overlapped, so that a few measurements suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from airflow_elastic.spec.scaling.observation import Speed

#: One measurement says nothing about the shape. Then so much of its step time is taken as divided among workers.
ASSUMED_DIVIDED = 0.9

#: More steps than this make a measurement no better: what differs then is the machine's doing.
MOST_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted curve.

    Attributes:
        fixed: seconds of a step that no number of workers changes.
        divided: seconds of a step on one worker that workers divide among themselves.
        per_worker: seconds that each further worker adds.
        sizes: the numbers of workers that were measured, ascending.
        spread: the typical relative error at the measured sizes; 0 where there is one size only.
    """

    fixed: float
    divided: float
    per_worker: float
    sizes: tuple[int, ...]
    spread: float = 0.0

    def step_seconds(self, workers: int) -> float:
        """Seconds of a step with this number of workers."""
        return self.fixed + self.divided / workers + self.per_worker * (workers - 1)

    def marginal(self, fewer: int, more: int) -> float:
        """The throughput that each further worker adds, as a share of that of each of the fewer ones. 1: as much."""
        gain = self.step_seconds(fewer) / self.step_seconds(more) - 1.0
        return gain * fewer / (more - fewer)


def fit(speeds: Iterable[Speed]) -> Fit | None:
    """The curve through measurements; None without any.

    Weighted least squares of relative errors, with no negative term: the best of all subsets of the terms. Of one size
    only, `ASSUMED_DIVIDED` of the time is taken as divided.
    """
    known = [
        one for one in speeds if math.isfinite(one.step_seconds) and one.step_seconds > 0 and one.steps > 0
    ]
    if not known:
        return None
    sizes = tuple(sorted({one.workers for one in known}))
    if len(sizes) == 1:
        weight = sum(_weight(one) for one in known)
        seconds = sum(_weight(one) * one.step_seconds for one in known) / weight
        whole = ASSUMED_DIVIDED * seconds * sizes[0]
        return Fit((1 - ASSUMED_DIVIDED) * seconds, whole, 0.0, sizes)
    best: tuple[float, tuple[float, float, float]] | None = None
    # As many terms as sizes at most: with two sizes, the two terms that explain them best.
    for count in range(1, min(3, len(sizes)) + 1):
        for terms in combinations(range(3), count):
            # Work that is divided is always a part: else a few large sizes would say that one worker is fastest.
            if 1 not in terms or (found := _solve(known, terms)) is None:
                continue
            error = _error(known, found)
            if best is None or error < best[0] * (1 - 1e-9) - 1e-18:
                best = error, found
    if best is None:
        return None
    fixed, divided, per_worker = best[1]
    weight = sum(map(_weight, known))
    return Fit(fixed, divided, per_worker, sizes, math.sqrt(best[0] / weight))


def best_known(measured: Sequence[Speed], learnt: Sequence[Speed]) -> tuple[Speed, ...]:
    """The measurements of this run, and those of earlier runs at other numbers of workers.

    Earlier runs may have been on other machines. They are scaled to this run where both have measured.
    """
    mine = {one.workers: one for one in measured}
    both = [mine[one.workers].step_seconds / one.step_seconds for one in learnt if one.workers in mine]
    scale = math.exp(sum(map(math.log, both)) / len(both)) if both else 1.0
    others = [
        Speed(one.workers, one.step_seconds * scale, one.steps) for one in learnt if one.workers not in mine
    ]
    return tuple(sorted([*mine.values(), *others], key=lambda one: one.workers))


def _weight(one: Speed) -> float:
    return float(min(one.steps, MOST_STEPS))


def _terms(workers: int) -> tuple[float, float, float]:
    return 1.0, 1.0 / workers, float(workers - 1)


def _error(known: Sequence[Speed], found: tuple[float, float, float]) -> float:
    def relative(one: Speed) -> float:
        given = sum(a * b for a, b in zip(_terms(one.workers), found, strict=True))
        return given / one.step_seconds - 1.0

    return sum(_weight(one) * relative(one) ** 2 for one in known)


def _solve(known: Sequence[Speed], terms: tuple[int, ...]) -> tuple[float, float, float] | None:
    """Least squares with these terms only; None if one of them would be negative."""
    rows = [(_weight(one), [_terms(one.workers)[i] / one.step_seconds for i in terms]) for one in known]
    size = len(terms)
    matrix = [[sum(w * row[i] * row[j] for w, row in rows) for j in range(size)] for i in range(size)]
    right = [sum(w * row[i] for w, row in rows) for i in range(size)]
    for i in range(size):  # Gaussian elimination; the matrix is at most 3 by 3
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        if abs(matrix[pivot][i]) < 1e-12 * max(1.0, abs(matrix[0][0])):
            return None
        matrix[i], matrix[pivot], right[i], right[pivot] = matrix[pivot], matrix[i], right[pivot], right[i]
        for k in range(i + 1, size):
            share = matrix[k][i] / matrix[i][i]
            matrix[k] = [a - share * b for a, b in zip(matrix[k], matrix[i], strict=True)]
            right[k] -= share * right[i]
    values = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][j] * values[j] for j in range(i + 1, size))
        values[i] = (right[i] - rest) / matrix[i][i]
    if any(value < 0 or not math.isfinite(value) for value in values):
        return None
    whole = [0.0, 0.0, 0.0]
    for i, value in zip(terms, values, strict=True):
        whole[i] = value
    return whole[0], whole[1], whole[2]
