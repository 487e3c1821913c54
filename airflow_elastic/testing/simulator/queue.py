"""Runs that wait for room: the first that fits is served first, as Kueue's BestEffortFIFO and Kubernetes do."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from airflow_elastic.testing.simulator.run import Run


class Queue:
    """Waiting runs by the room that each needs, so that a look at them is cheap however many there are."""

    def __init__(self) -> None:
        self._by_need: dict[tuple[int, int], list[tuple[int, int, Run]]] = {}
        self._need: dict[int, tuple[int, int]] = {}
        self._runs: dict[int, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: Run) -> bool:
        return run.order in self._runs

    def __iter__(self) -> Iterator[Run]:
        return iter([self._runs[order] for order in sorted(self._runs)])

    def put(self, run: Run, workers: int) -> None:
        """It waits for room for so many workers, or does so with another number than before."""
        need = workers, run.job.gpus
        if self._need.get(run.order) == need:
            return
        self._need[run.order], self._runs[run.order] = need, run
        heapq.heappush(self._by_need.setdefault(need, []), (run.order, id(run), run))

    def remove(self, run: Run) -> None:
        """It waits no longer."""
        self._runs.pop(run.order, None)
        self._need.pop(run.order, None)

    def first(self, free: int, passed: set[int]) -> Run | None:
        """The earliest that needs at most so many GPUs and was not passed over; None if there is none."""
        best: Run | None = None
        for need, heap in self._by_need.items():
            if need[0] * need[1] > free:
                continue
            while heap and self._need.get(heap[0][0]) != need:
                heapq.heappop(heap)
            if not heap:
                continue
            waiting = (one for one in heap if one[0] not in passed and self._need.get(one[0]) == need)
            found = heap[0] if heap[0][0] not in passed else min(waiting, default=None)
            if found is not None and (best is None or found[0] < best.order):
                best = found[2]
        return best
