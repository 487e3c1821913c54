"""From the traces of a training that is killed again and again: which steps count. Pure; knows no system.

A step of a rank counts if training never goes back to it or to one before it. Goodput is the time in steps that count,
of the time that all ranks had.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank: `began` and `ended` in seconds of one clock."""

    rank: int
    number: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the training, from its `began` to its `ended`.

    Attributes:
        kills: when something was killed.
        again: when somebody had to start the whole job again.
    """

    began: float
    ended: float
    kills: tuple[float, ...] = ()
    again: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of it.

    Attributes:
        goodput: share of all ranks' time in steps that count, from 0 to 1.
        lost: steps that were done in vain: those of all ranks, over the number of ranks.
        back: seconds from each kill to the end of the first step after it. All ranks have done that one.
        failed: kills after which no such step came before the job was started again, the next kill or the end.
    """

    goodput: float
    lost: float
    back: tuple[float, ...]
    failed: int


def parse(rank: int, lines: Iterable[str]) -> list[Step]:
    """The steps of a rank's trace. A line that the rank was killed in is left out."""
    found = []
    for line in lines:
        words = line.split()
        if line.endswith("\n") and len(words) == 3:
            found.append(Step(rank, int(words[0]), float(words[1]), float(words[2])))
    return found


def counted(steps: Iterable[Step]) -> list[Step]:
    """Those that count, by rank and number."""
    kept: list[Step] = []
    for step in sorted(steps, key=lambda one: (one.rank, one.ended)):
        while kept and kept[-1].rank == step.rank and kept[-1].number >= step.number:
            kept.pop()
        kept.append(step)
    return kept


def figures(steps: Sequence[Step], stretch: Stretch, world: int) -> Figures:
    """Judge a stretch of a training of `world` ranks by its steps. Steps that end outside of it are left out."""
    inside = [step for step in steps if stretch.began < step.ended <= stretch.ended]
    kept = counted(inside)
    seconds = sum(step.ended - max(step.began, stretch.began) for step in kept)
    back, failed = [], 0
    for kill, next_one in zip(stretch.kills, (*stretch.kills[1:], stretch.ended), strict=True):
        ends: dict[int, list[float]] = {}
        # A survivor may still end the step in which the other died. A new step has begun after the kill.
        limit = min([next_one, *(moment for moment in stretch.again if moment > kill)])
        for step in inside:
            if step.began >= kill and step.ended <= limit:
                ends.setdefault(step.number, []).append(step.ended)
        whole = [max(found) for found in ends.values() if len(found) >= world]
        back += [min(whole) - kill] if whole else []
        failed += not whole
    return Figures(
        goodput=seconds / (world * (stretch.ended - stretch.began)),
        lost=(len(inside) - len(kept)) / world,
        back=tuple(back),
        failed=failed,
    )


def together(found: Sequence[tuple[Stretch, Figures]]) -> Figures:
    """Those of several stretches: goodput by their lengths, all else added."""
    total = sum(stretch.ended - stretch.began for stretch, _ in found)
    return Figures(
        goodput=sum(one.goodput * (stretch.ended - stretch.began) for stretch, one in found) / total,
        lost=sum(one.lost for _, one in found),
        back=tuple(second for _, one in found for second in one.back),
        failed=sum(one.failed for _, one in found),
    )


def schedule(seed: int, turns: int, kills: int, every: float) -> list[list[float]]:
    """For each turn, seconds from its first step to each kill: one in each `every` seconds, in their first half."""
    luck = random.Random(seed)
    return [[(number + luck.uniform(0.1, 0.5)) * every for number in range(kills)] for _ in range(turns)]


def judged(goodput: float, others: Mapping[str, float], goal: float, missing: Sequence[str] = ()) -> str:
    """Say whether ours reaches the goal and is ahead of the best other system.

    Args:
        goodput: ours.
        others: those of the other systems, by their names.
        goal: the least that ours must be.
        missing: systems that should be among the others, and were not measured. Ours may lose without them, and it
            cannot win.
    """
    best = max(others, key=lambda name: others[name])
    found = f"{goodput:.2%}, and the best other is {best} with {others[best]:.2%}"
    if goodput < goal or goodput <= others[best]:
        return f"{found}: MISSED"
    if missing:
        return f"{found}: NOT DECIDED, as {' and '.join(missing)} was not measured"
    return f"{found}: kept"
