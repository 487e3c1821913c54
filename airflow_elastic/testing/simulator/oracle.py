"""Bounds that no schedule can beat, not even one that knows the future.

They relax the problem, so a schedule that reaches them need not exist:

- Each run needs at least `Job.needed` GPU seconds, plus one start with its fewest workers.
- It takes at least one start plus its steps with its fastest number of workers, and each save stops it.
- GPUs can be divided at will, at any moment and at no cost; no machine fails before the bound, nor any process.
  (Machines that are away at known times do count.)

`makespan`: for each moment t, the work that is submitted at t or later has to be done after t. And each run has to be
over. `duration`: the runs become jobs of one machine with the speed of the whole cluster. It serves the shortest rest
first, which minimises the mean time of all (Schrage 1968). The bound is at least the mean time of each run alone.
`waiting`: 0.

`lost`: a run is there from its submission for at least as long as it takes alone. Meanwhile each GPU that it could use
is either held or idle while wanted. So this GPU time is at least an integral over time: the GPUs that those runs could
use, but no more than the cluster has. The part beyond the needed GPU time is lost. The starts and saves are lost in any
case.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.traces.trace import Job, Trace


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least that is possible: seconds, and GPU seconds."""

    makespan: float
    duration: float
    lost: float
    waiting: float = 0.0


def bounds(trace: Trace, costs: Costs) -> Bounds:
    """Of a trace with these costs."""
    if not trace.jobs:
        return Bounds(0.0, 0.0, 0.0)
    work = [_work(job, costs) for job in trace.jobs]
    alone = [costs.start + job.shortest / costs.training for job in trace.jobs]
    speed = _Speed(trace)
    ends = [job.submitted_at + least for job, least in zip(trace.jobs, alone, strict=True)]
    makespan = max(ends)
    later = 0.0
    for job, volume in zip(reversed(trace.jobs), reversed(work), strict=True):
        later += volume
        makespan = max(makespan, speed.done(job.submitted_at, later))
    shared = _shortest_rest_first(trace.jobs, work, trace.capacity)
    duration = max(shared, sum(alone)) / len(trace.jobs)
    needed = sum(job.needed for job in trace.jobs)
    lost = max(sum(work), _wanted(trace, alone)) - needed
    return Bounds(makespan, duration, lost)


def _work(job: Job, costs: Costs) -> float:
    """GPU seconds that it holds at least. The last save may fall together with the end."""
    return job.needed / costs.training + costs.start * job.least * job.gpus


class _Speed:
    """How many GPUs are there, at each moment."""

    def __init__(self, trace: Trace) -> None:
        steps = [(0.0, 0)]
        changes = [(one.begins, -trace.gpus) for one in trace.outages]
        changes += [(one.ends, trace.gpus) for one in trace.outages]
        there = trace.capacity
        self._from: list[tuple[float, int]] = [(steps[0][0], there)]
        for at, change in sorted(changes):
            there += change
            self._from.append((at, there))
        self._done = [0.0]
        for (at, gpus), (then, _) in zip(self._from, self._from[1:], strict=False):
            self._done.append(self._done[-1] + gpus * (then - at))

    def done(self, begin: float, volume: float) -> float:
        """When so many GPU seconds that begin at a moment are done, if all GPUs work on them."""
        target = self._until(begin) + volume
        for i in range(len(self._from) - 1, -1, -1):
            if self._done[i] <= target:
                at, gpus = self._from[i]
                return at + (target - self._done[i]) / gpus if gpus else at
        return begin

    def _until(self, at: float) -> float:
        for i in range(len(self._from) - 1, -1, -1):
            begin, gpus = self._from[i]
            if begin <= at:
                return self._done[i] + gpus * (at - begin)
        return 0.0


def _shortest_rest_first(jobs: Sequence[Job], work: Sequence[float], capacity: int) -> float:
    """The sum of all durations on one machine of this speed, jobs by their submission."""
    total, now, i = 0.0, 0.0, 0
    left: list[tuple[float, int]] = []
    while i < len(jobs) or left:
        if not left:
            now = max(now, jobs[i].submitted_at)
        while i < len(jobs) and jobs[i].submitted_at <= now:
            heapq.heappush(left, (work[i], i))
            i += 1
        rest, which = heapq.heappop(left)
        ends = now + rest / capacity
        if i < len(jobs) and jobs[i].submitted_at < ends:
            done = (jobs[i].submitted_at - now) * capacity
            heapq.heappush(left, (rest - done, which))
            now = jobs[i].submitted_at
        else:
            now = ends
            total += now - jobs[which].submitted_at
    return total


def _wanted(trace: Trace, alone: Sequence[float]) -> float:
    """GPU seconds that runs could use if each stays only for as long as it takes alone."""
    changes = [(one.begins, 0, -trace.gpus) for one in trace.outages]
    changes += [(one.ends, 0, trace.gpus) for one in trace.outages]
    for job, least in zip(trace.jobs, alone, strict=True):
        gpus = job.useful * job.gpus
        changes += [(job.submitted_at, gpus, 0), (job.submitted_at + least, -gpus, 0)]
    total, before, wanted, there = 0.0, 0.0, 0, trace.capacity
    for at, more, gpus in sorted(changes):
        total += min(wanted, there) * (at - before)
        before, wanted, there = at, wanted + more, there + gpus
    return total
