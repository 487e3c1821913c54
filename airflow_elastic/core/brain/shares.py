"""How runs divide a capacity: priorities first, then the run that is furthest from its best speed.

1. A run that trains keeps its fewest workers. If the capacity is too small even for that, those of high priority
   and the oldest keep them; the others get nothing.
2. A run that waits begins with its fewest workers if there is room. But no run begins while one of a higher priority
   waits. It would take the room for which that one waits, and could not give it back without an end.
3. The rest is given to one priority after the other. There the run with the least of its best speed gets its next
   size first, as long as that adds enough. This is max-min fairness over the measured curve. A scale step with a
   save takes such workers back at any time.

The result depends on nothing else, so each controller computes the same from the same claims.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from airflow_elastic.core.scaling.throughput import Fit

#: A further worker must add at least this share of what a worker gives on average. Otherwise room stays free.
LEAST_MARGINAL = 0.05


@dataclass(frozen=True, slots=True)
class Claim:
    """What one run wants of a capacity.

    Attributes:
        run: its URI.
        sizes: the numbers of workers that it may have, ascending, at least one.
        priority: higher ones come first.
        cost: units of the capacity that a worker takes, such as GPUs.
        curve: its step times; None if nothing was measured: then its speed is taken to grow with its workers.
        trains: whether it has workers now.
        since: when it first asked, epoch seconds; of equal ones, the oldest comes first.
    """

    run: str
    sizes: tuple[int, ...]
    priority: int = 0
    cost: int = 1
    curve: Fit | None = None
    trains: bool = False
    since: float = 0.0

    @property
    def ladder(self) -> tuple[tuple[int, float], ...]:
        """The sizes up to the first step that adds too little, each with its share of the best speed of these."""
        return _ladder(self.sizes, self.curve)


def shares(claims: Iterable[Claim], capacity: int) -> Mapping[str, int]:
    """The number of workers of each run; 0 for a run that must wait.

    Args:
        claims: one for each run.
        capacity: units that all of them together may take.
    """
    ordered = sorted(claims, key=lambda one: (-one.priority, one.since, one.run))
    given = dict.fromkeys((one.run for one in ordered), 0)
    left = max(0, capacity)
    for one in (one for one in ordered if one.trains):
        left -= _begin(one, given, left)
    blocked: int | None = None  # the priority of a run that waits
    for one in (one for one in ordered if not one.trains):
        if blocked is not None and one.priority < blocked:
            break
        taken = _begin(one, given, left)
        left -= taken
        if not taken:
            blocked = one.priority
    for priority in sorted({one.priority for one in ordered}, reverse=True):
        left = _filled([one for one in ordered if one.priority == priority and given[one.run]], given, left)
    return given


def _begin(one: Claim, given: dict[str, int], left: int) -> int:
    units = one.sizes[0] * one.cost
    if units > left:
        return 0
    given[one.run] = one.sizes[0]
    return units


def _filled(claims: Sequence[Claim], given: dict[str, int], left: int) -> int:
    """Give the rest to these runs, first to the one with the lowest level; returns the units that nobody takes."""
    ladders = [one.ladder for one in claims]
    growing = [(ladder[0][1], place, 0) for place, ladder in enumerate(ladders)]
    heapq.heapify(growing)
    while growing:
        _, place, rung = heapq.heappop(growing)
        one, ladder = claims[place], ladders[place]
        if rung + 1 == len(ladder):
            continue
        size, level = ladder[rung + 1]
        units = (size - ladder[rung][0]) * one.cost
        if units <= left:
            left -= units
            given[one.run] = size
            heapq.heappush(growing, (level, place, rung + 1))
    return left


def words(claim: Claim, workers: int, claims: Sequence[Claim], capacity: int) -> str:
    """Why a run has this share, in one sentence with the figures."""
    others = len(claims) - 1
    beside = f"{others} other run{'' if others == 1 else 's'} with {capacity} units for all"
    if not workers:
        return f"it waits: there is no room for its fewest workers, {claim.sizes[0]}, beside {beside}"
    level = dict(claim.ladder).get(workers, 1.0)
    higher = sum(one.priority > claim.priority for one in claims)
    rank = f", {higher} of them of a higher priority" if higher else ""
    return (
        f"{workers} of at most {claim.sizes[-1]}, with {level:.0%} of its best speed, beside {beside}{rank}"
    )


@lru_cache(maxsize=4096)
def _ladder(sizes: tuple[int, ...], curve: Fit | None) -> tuple[tuple[int, float], ...]:
    def speed(workers: int) -> float:
        return float(workers) if curve is None else 1.0 / curve.step_seconds(workers)

    found = [(sizes[0], speed(sizes[0]))]
    for size in sizes[1:]:
        (before, slower), faster = found[-1], speed(size)
        if (faster / slower - 1.0) * before / (size - before) < LEAST_MARGINAL:
            break
        found.append((size, faster))
    return tuple((size, value / found[-1][1]) for size, value in found)
