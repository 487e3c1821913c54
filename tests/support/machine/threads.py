"""Ranks that are threads of this process, or this process alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from airflow_elastic.runtime.collectives.process_group import Collectives


class Thread(Collectives):
    """Ranks that are threads of one process, and meet at a table."""

    def __init__(self, rank: int, world_size: int, barrier: threading.Barrier, table: list[Any]) -> None:
        super().__init__(rank, world_size, None)
        self._barrier, self._table = barrier, table

    def gather(self, mine: Any) -> list[Any]:
        self._table[self.rank] = mine
        self._barrier.wait(60)
        told = list(self._table)
        self._barrier.wait(60)
        return told

    def from_first(self, make: Any) -> Any:
        box: tuple[Any, Exception | None] = (None, None)
        if self.rank == 0:
            try:
                box = (make(), None)
            except Exception as error:
                box = (None, error)
        result, error = self.gather(box)[0]
        if error is not None:
            raise error
        return result

    def largest(self, *numbers: float) -> Callable[[], list[float]]:
        told = self.gather(numbers)
        return lambda: [float(max(each)) for each in zip(*told, strict=True)]


def together(world: int, work: Any) -> list[Any]:
    """What `work` returns for each of so many ranks, all at once."""
    barrier, table, results = threading.Barrier(world), [None] * world, [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = work(Thread(rank, world, barrier, table))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@contextmanager
def process_group() -> Iterator[None]:
    """A group of torch's that has this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
