"""How many workers this machine has room for now."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from decimal import Decimal
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.gpus import GpuMeter
from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.engines.api import ROOM_LIMITS, Limit, Room
from airflow_elastic.engines.quantities import ALLOWED, is_quantity, number_of
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.scaling.observation import Capacity

if TYPE_CHECKING:
    from airflow_elastic.spec.run import RunSpec

#: Resources of a worker that are known here.
GPU = "nvidia.com/gpu"
_KNOWN = ("cpu", "memory", GPU)


def capacity(spec: RunSpec, own: int) -> Capacity:
    """See `MeasuresCapacity`. `own`: the workers of the run, whose processors are taken also while they are idle.

    There are no claims: nothing on this machine waits for room.
    """
    found = room(spec, own=own)
    return Capacity(time.time(), found.workers, str(found))


def room(spec: RunSpec, limits: Collection[str] = ROOM_LIMITS, *, own: int = 0) -> Room:
    """See `MeasuresRoom`. Without `workers.resources` a worker takes one processor for each rank.

    Free processors are those that this process may use, less the mean number of processes that wanted one in the last
    minute. The `own` workers take at least what they ask for. Free memory is what the machine and our control groups
    have left. A GPU is free if no process computes on it.

    Raises:
        SpecError: the resources name something else, or are no quantities.
    """
    resources = dict(spec.workers.resources)
    problems = [
        Problem(f"workers.resources.{name}", value, f"with the engine local one of {', '.join(_KNOWN)}")
        if name not in _KNOWN
        else Problem(f"workers.resources.{name}", value, ALLOWED)
        for name, value in resources.items()
        if name not in _KNOWN or not is_quantity(value)
    ]
    if problems:
        raise SpecError(*problems)
    resources.setdefault("cpu", str(spec.workers.procs))
    if "nodes" not in limits:
        return Room(())
    each = {name: number_of(value) for name, value in resources.items()}
    return Room(tuple(_limit(name, amount, own) for name, amount in each.items() if amount))


def _limit(name: str, amount: Decimal, own: int) -> Limit:
    free, unit, size = _processors(float(amount) * own) if name == "cpu" else _FREE[name]()
    text = f"{free / size:.2f} {unit} free, {float(amount) / size:g} a worker"
    return Limit(name, max(0, int(Decimal(free) // amount)), text)


def _processors(own: float) -> tuple[float, str, int]:
    usable = len(os.sched_getaffinity(0))
    return max(0.0, usable - max(own, os.getloadavg()[0])), f"of {usable} processors", 1


def _memory() -> tuple[float, str, int]:
    return free_bytes() or 0, "GiB of memory", 2**30


def _gpus() -> tuple[float, str, int]:
    return GpuMeter().idle(), "GPUs", 1


_FREE = {"memory": _memory, GPU: _gpus}
