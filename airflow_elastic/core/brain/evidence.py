"""Which facts count for a run, and the speeds that they give together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_elastic.core.brain.kind import kind_of, training_of
from airflow_elastic.spec.scaling.observation import Speed

if TYPE_CHECKING:
    from airflow_elastic.core.brain.facts import Facts
    from airflow_elastic.spec.run import RunSpec


def of_kind(spec: RunSpec, known: Iterable[Facts]) -> tuple[Facts, ...]:
    """The facts about runs like this one, oldest first. With mode `single`, only those with its name."""
    kind = kind_of(spec)
    alike = (one for one in known if one.kind == kind and (spec.brain != "single" or one.name == spec.name))
    return tuple(sorted(alike, key=lambda one: (one.created_at, one.uri)))


def speeds_of(spec: RunSpec, alike: Sequence[Facts]) -> tuple[tuple[Speed, ...], int]:
    """Seconds a step by number of workers, and from how many runs.

    Runs with equal arguments count as they are. If there is none, the others do. Their step times differ, so each is
    scaled to the newest of them, by the sizes that both have measured. The shape of the curve is then known.
    """
    training = training_of(spec)
    same = [one for one in alike if one.training == training and one.speeds]
    if same:
        return _pooled([one.speeds for one in same]), len(same)
    others = [one.speeds for one in alike if one.speeds]
    if not others:
        return (), 0
    newest = {one.workers: one.step_seconds for one in others[-1]}
    scaled, used = [], 0
    for speeds in others:
        shared = [newest[one.workers] / one.step_seconds for one in speeds if one.workers in newest]
        if not shared:
            continue
        factor = math.exp(statistics.fmean(map(math.log, shared)))
        scaled.append(tuple(Speed(one.workers, one.step_seconds * factor, one.steps) for one in speeds))
        used += 1
    return _pooled(scaled), used


def _pooled(runs: Iterable[Sequence[Speed]]) -> tuple[Speed, ...]:
    """One speed for each number of workers: the mean over runs, weighted by steps."""
    seconds: dict[int, float] = {}
    steps: dict[int, int] = {}
    for speeds in runs:
        for one in speeds:
            if one.step_seconds > 0 and math.isfinite(one.step_seconds) and one.steps > 0:
                seconds[one.workers] = seconds.get(one.workers, 0.0) + one.step_seconds * one.steps
                steps[one.workers] = steps.get(one.workers, 0) + one.steps
    return tuple(Speed(size, seconds[size] / steps[size], steps[size]) for size in sorted(steps))
