"""Shares of the cluster among runs, by the marginal throughput of what each has measured.

First each run gets its fewest workers, the earliest first. Then the next worker goes where it adds the most, as a share
of the run's speed with its fewest workers, for each GPU. Small differences change nothing: a run keeps what it has
unless another gains clearly more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.spec.scaling.observation import Share


@dataclass(frozen=True, slots=True)
class Ask:
    """A run that wants a share.

    Attributes:
        order: of submission; names the run.
        least: its fewest workers.
        most: its most workers.
        gpus: of each worker.
        has: workers that it has now; 0 while it waits.
        curve: its seconds a step.
    """

    order: int
    least: int
    most: int
    gpus: int
    has: int
    curve: Fit


#: A worker that a run has already counts as if it added this many times as much.
STAY = 1.2

#: A worker that adds less than this share of one of the fewest is not given.
WORTH = 0.02


def shares(asks: Sequence[Ask], capacity: int) -> dict[int, Share]:
    """The share of each run; 0 workers: it has to wait."""
    given = dict.fromkeys((ask.order for ask in asks), 0)
    left = capacity
    heap: list[tuple[float, int, Ask]] = []
    for ask in sorted(asks, key=lambda ask: (not ask.has, ask.order)):
        if ask.least * ask.gpus <= left:
            given[ask.order] = ask.least
            left -= ask.least * ask.gpus
            _push(heap, ask, ask.least)
    while heap and left > 0:
        _, order, ask = heapq.heappop(heap)
        if ask.gpus <= left:
            given[order] += 1
            left -= ask.gpus
            _push(heap, ask, given[order])
    text = f"of {capacity} GPUs that {len(asks)} runs share"
    return {order: Share(workers, f"{workers} workers {text}") for order, workers in given.items()}


def _push(heap: list[tuple[float, int, Ask]], ask: Ask, workers: int) -> None:
    if workers >= ask.most:
        return
    first = ask.curve.step_seconds(ask.least)
    gain = (first / ask.curve.step_seconds(workers + 1) - first / ask.curve.step_seconds(workers)) * ask.least
    if gain >= WORTH:
        heapq.heappush(heap, (-gain * (STAY if workers < ask.has else 1.0), ask.order, ask))
