"""Pollux's scheduler (Qiao et al., OSDI '21, section 4.2), with a greedy search in place of its genetic algorithm.

- SPEEDUP(n) = goodput with n GPUs / goodput with an equal part of the cluster.
- FITNESS_p = the power mean of all speedups, with p = -1.
- If its allocation changes, a job's speedup is multiplied by (T - R d) / (T + d). T is its age, R the number of its
  former changes, and d = 30 s.
- A job may grow to twice the most GPUs that it has ever had. Every 60 s.

The global batch of these jobs is constant, so goodput is throughput. With p = -1 the fitness grows as the sum of
1 / SPEEDUP falls. Without the penalty this sum is separable and convex, so that greedy steps of one worker find its
optimum. Four allocations compete by their fitness with the penalty. They are: no change, the optimum, room for new jobs
alone, and growth alone. The published genetic algorithm tries 100 generations of 100 allocations every time.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from airflow_elastic.core.scaling.throughput import Fit, fit
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.run import Run
from airflow_elastic.testing.simulator.traces.trace import Job

INTERVAL_SECONDS, RESTART_SECONDS = 60.0, 30.0

#: Before anything is measured, a job is taken to scale perfectly.
PERFECT = Fit(0.0, 1.0, 0.0, ())


def reallocation_factor(age: float, changes: int, cost: float = RESTART_SECONDS) -> float:
    """What a change leaves of a job's speedup."""
    return max(0.0, (age - changes * cost) / (age + cost))


def fitness(speedups: Sequence[float], p: float = -1.0) -> float:
    """The power mean; 0 if a job gets nothing and `p` is negative."""
    if not speedups or (p < 0 and min(speedups) <= 0):
        return 0.0
    return float((sum(speedup**p for speedup in speedups) / len(speedups)) ** (1 / p))


class _Asks:
    """What one job is worth with each number of workers."""

    def __init__(self, run: Run, now: float, fair: float, most_had: int) -> None:
        self.run, self.gpus, self.now_has = run, run.job.gpus, run.held
        curve = fit(run.speeds(now)) or PERFECT
        self._curve = curve if len(curve.sizes) > 1 else Fit(0.0, 1.0, 0.0, curve.sizes)
        self.least = run.job.least
        self.most = min(run.job.most, max(2 * most_had, self.least))
        self._fair = self._curve.step_seconds(max(1, round(fair / self.gpus)))
        self._factor = reallocation_factor(now - run.job.submitted_at, run.scale_steps + run.restarts)

    def inverse(self, workers: int) -> float:
        """1 / SPEEDUP, without the penalty."""
        return self._curve.step_seconds(workers) / self._fair

    def speedup(self, workers: int) -> float:
        """With the penalty, if this is a change of a job that runs."""
        if not workers:
            return 0.0
        changed = self.now_has and workers != self.now_has
        return (self._factor if changed else 1.0) / self.inverse(workers)


class Pollux:
    """All jobs are allocated together."""

    name = "pollux"
    source = "Qiao et al., OSDI '21"
    interval = INTERVAL_SECONDS

    def __init__(self) -> None:
        self._most_had: dict[int, int] = {}
        self._given: dict[int, int] = {}

    def workers(self, job: Job, view: View) -> Workers:
        return Workers(job.least, job.least, job.most)

    def own(self, job: Job) -> ScalingPolicy | None:
        return None

    def start(self, run: Run, room: int) -> int:
        given = self._given.get(run.order, 0)
        return min(given, room) if given and room >= run.job.least else 0

    def least(self, run: Run) -> int:
        return run.job.least if self._given.get(run.order) else 10**9

    def look(self, view: View) -> float | None:
        running, waiting = view.running, view.waiting
        jobs = len(running) + len(waiting)
        if not jobs:
            return None
        fair = view.capacity / jobs
        asks = [self._asks(run, view.now, fair) for run in (*running, *waiting)]
        fixed = {ask.run.order: ask.now_has for ask in asks if ask.now_has and view.busy(ask.run)}
        kept = {ask.run.order: ask.now_has for ask in asks}
        allocations = [
            kept,
            _grown(asks, view.capacity, fixed),
            _grown(asks, view.capacity, {order: size for order, size in kept.items() if size}),
            _grown(asks, view.capacity, fixed, kept),
        ]
        best = max(allocations, key=lambda given: _value(asks, given))
        for ask in sorted(asks, key=lambda ask: best[ask.run.order] - ask.now_has):
            order, size = ask.run.order, best[ask.run.order]
            self._given[order] = size
            if not ask.now_has:
                view.requeue(ask.run)
            elif size and size != ask.now_has and order not in fixed:
                view.ask(ask.run, size)
        # Jobs age and measure: it looks again while they run, as it does every minute.
        return view.now + INTERVAL_SECONDS if best is not kept else view.now + 10 * INTERVAL_SECONDS

    def ended(self, run: Run) -> None:
        self._most_had.pop(run.order, None)
        self._given.pop(run.order, None)

    def _asks(self, run: Run, now: float, fair: float) -> _Asks:
        had = max(self._most_had.get(run.order, 0), run.held)
        self._most_had[run.order] = had
        return _Asks(run, now, fair, had)


def _value(asks: Sequence[_Asks], given: Mapping[int, int]) -> tuple[int, float]:
    """How many jobs get anything, and the fitness of these."""
    speedups = [ask.speedup(given[ask.run.order]) for ask in asks if given[ask.run.order]]
    return len(speedups), fitness(speedups)


def _grown(
    asks: Sequence[_Asks], capacity: int, fixed: Mapping[int, int], at_least: Mapping[int, int] | None = None
) -> dict[int, int]:
    """The allocation that greedy steps find, with some jobs left as they are.

    Args:
        asks: all jobs; those that run come first, and get their fewest workers first.
        capacity: GPUs.
        fixed: workers of jobs that must not change.
        at_least: workers that jobs keep at least.
    """
    given = {ask.run.order: fixed.get(ask.run.order, 0) for ask in asks}
    left = capacity - sum(given[ask.run.order] * ask.gpus for ask in asks)
    heap: list[tuple[float, int, _Asks]] = []
    for ask in asks:
        order = ask.run.order
        if order in fixed:
            continue
        floor = max(ask.least, at_least.get(order, 0) if at_least else 0)
        if floor * ask.gpus > left:
            continue
        given[order] = floor
        left -= floor * ask.gpus
        _push(heap, ask, floor)
    while heap and left > 0:
        gain, order, ask = heapq.heappop(heap)
        if gain >= 0 or ask.gpus > left:
            continue
        given[order] += 1
        left -= ask.gpus
        _push(heap, ask, given[order])
    return given


def _push(heap: list[tuple[float, int, _Asks]], ask: _Asks, workers: int) -> None:
    if workers < ask.most:
        gain = (ask.inverse(workers) - ask.inverse(workers + 1)) / ask.gpus
        heapq.heappush(heap, (-gain, ask.run.order, ask))
