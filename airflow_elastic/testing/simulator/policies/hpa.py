"""Kubernetes' HorizontalPodAutoscaler on the CPU use of workers, by its documentation ("Horizontal Pod Autoscaling").

- desired = ceil(current * use / target); nothing changes while the ratio is within 0.1 of 1.
- Every 15 s. Scaling down follows the highest desired number of the last 300 s; scaling up does not wait.
- In 15 s it at most doubles the pods, or adds 4 if that is more.

It knows nothing of training: a worker's processors are busy while it computes, and wait while it synchronises. So the
use here is the divided part of a step, as a share of the whole step. Pods that have no room wait; here they are asked
for again at the next look.
"""

from __future__ import annotations

import math
from collections import deque

from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.simulator.policies.api import View
from airflow_elastic.testing.simulator.policies.whole import Whole
from airflow_elastic.testing.simulator.run import Run
from airflow_elastic.testing.simulator.traces.trace import Job

SYNC_SECONDS, STABILISATION_SECONDS, TOLERANCE = 15.0, 300.0, 0.1

#: The default of Kubernetes where an HPA names no metric.
TARGET = 0.8


def desired(current: int, use: float, target: float) -> int:
    """The documented formula: how many replicas there should be."""
    ratio = use / target
    return current if abs(ratio - 1.0) <= TOLERANCE else math.ceil(current * ratio - 1e-9)


def fastest_growth(current: int) -> int:
    """The most replicas after one period, by the default scale-up policies."""
    return max(2 * current, current + 4)


class Hpa(Whole):
    """One HPA for each job, from `least` to `most` workers."""

    name = "hpa-cpu"
    source = "Kubernetes documentation, Horizontal Pod Autoscaling"
    interval = SYNC_SECONDS

    def __init__(self, target: float = TARGET) -> None:
        self._target = target
        self._wanted: dict[int, deque[tuple[float, int]]] = {}

    def workers(self, job: Job, view: View) -> Workers:
        return Workers(job.workers, job.least, job.most)

    def look(self, view: View) -> float | None:
        again: float | None = None
        for run in view.running:
            if view.busy(run):
                continue
            current = run.held
            use = _use(run)
            wanted = min(desired(current, use, self._target), fastest_growth(current))
            wanted = min(max(wanted, run.job.least), run.job.most)
            known = self._wanted.setdefault(run.order, deque())
            known.append((view.now, wanted))
            while known[0][0] < view.now - STABILISATION_SECONDS:
                known.popleft()
            if wanted < current:
                wanted = min(current, max(size for _, size in known))
                if wanted == current:  # it may shrink when the highest of these is old enough
                    oldest = (
                        max(at for at, size in known if size >= current)
                        if any(size >= current for _, size in known)
                        else view.now
                    )
                    again = _earlier(again, oldest + STABILISATION_SECONDS + SYNC_SECONDS)
            if wanted != current:
                view.ask(run, wanted)
                again = _earlier(again, view.now + SYNC_SECONDS)
        return again

    def ended(self, run: Run) -> None:
        self._wanted.pop(run.order, None)


def _use(run: Run) -> float:
    """CPU use of a worker as a share of its request."""
    curve = run.job.curve
    return curve.divided / run.held / curve.step_seconds(run.held)


def _earlier(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
