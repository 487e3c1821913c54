"""Estimate the memory that saves take on a worker. If there is not enough, refuse to begin, before the first step."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.memory import free_memory
from airflow_elastic.adapters.host.processes import this_node
from airflow_elastic.runtime.tiers.shared_memory import COUNT
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_elastic.runtime.checkpoint.save.layout import Layout
    from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
    from airflow_elastic.runtime.collectives.process_group import Collectives

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory that the saves of one rank take, in bytes.

    Attributes:
        state: this rank's part of a state; its agent holds it `COUNT` times.
        kept: the bytes that a neighbour keeps as well; 0 without buddies.
        have: the memory that the agent has for this rank's states already.
        keeps: the memory that the agent has for a neighbour's states already.
        at_least: the state may be larger, because an optimizer's state is not known before its first step.
    """

    state: int
    kept: int
    have: int
    keeps: int = 0
    at_least: bool = False


def estimate_memory(stage: StagingArea, plan: Layout, *, at_least: bool = False) -> MemoryEstimate:
    """The estimate for this rank."""
    kept = 0 if stage.keeps is None else plan.kept_bytes
    return MemoryEstimate(plan.total_bytes, kept, stage.have_bytes, stage.keeps or 0, at_least)


def check_memory(mine: MemoryEstimate | None, ranks: Collectives, procs: int) -> None:
    """Log how much memory saves take, and check that there is enough. All ranks call this together.

    Args:
        mine: the estimate for this rank; None if it is not known yet. Then nothing is checked.
        ranks: this rank among the others.
        procs: number of ranks of a worker.

    Raises:
        InvalidInput: a worker, or several workers that share memory, do not have enough; raised on all ranks.
    """
    each = ranks.gather((mine, free_memory(), this_node().partition("/")[0]))
    sizes = [one for one, _, _ in each if one is not None]
    if len(sizes) < len(each):
        return
    workers = [sizes[at : at + procs] for at in range(0, len(sizes), procs)]
    neighbours = COUNT * max(sum(one.kept for one in worker) for worker in workers)
    wanted = [_to_allocate(worker, neighbours) for worker in workers]
    shares = _shares([places for _, places, _ in each], procs)
    for free, here in shares:
        if sum(wanted[one] for one in here) > free:
            most = max(here, key=wanted.__getitem__)
            needs = _needs(workers[most], neighbours)
            buddies = ", or turn checkpoint.buddies off" if neighbours else ""
            if len(here) == 1:
                raise InvalidInput(
                    f"worker {most} does not have enough memory for saves: {needs}, and only {free / 1e9:.3g} GB are "
                    f"free. Give workers more memory, or use more workers{buddies}"
                )
            raise InvalidInput(
                f"{each[most * procs][2]} does not have enough memory for the saves of its workers "
                f"{', '.join(map(str, here))}: they need {sum(wanted[one] for one in here) / 1e9:.3g} GB, and only "
                f"{free / 1e9:.3g} GB are free there. For the largest of them, {needs}. Give it more memory, or fewer "
                f"of the workers{buddies}"
            )
    number, rank = divmod(ranks.rank, procs)
    if rank == 0 and (mine_of := [share for share in shares if number in share[1]]):
        free, here = min(mine_of)
        shared = f" for workers {', '.join(map(str, here))} together" if len(here) > 1 else ""
        log.info(
            "worker %d: %s; %s are free%s", number, _needs(workers[number], neighbours), _size(free), shared
        )


def _shares(each: Sequence[Mapping[str, int]], procs: int) -> list[tuple[int, list[int]]]:
    """The free bytes of each memory, and the workers that use it. A memory of fewer workers comes first.

    Args:
        each: for each rank, the free bytes that it has found, by memory.
        procs: number of ranks of a worker.
    """
    free, workers = dict[str, int](), defaultdict[str, list[int]](list)
    for rank, places in enumerate(each):
        for place, size in places.items():
            free[place] = min(size, free.get(place, size))
            if rank // procs not in workers[place]:
                workers[place].append(rank // procs)
    return sorted(((size, workers[place]) for place, size in free.items()), key=lambda one: len(one[1]))


def _to_allocate(worker: Sequence[MemoryEstimate], neighbours: int) -> int:
    """The memory that a worker's agent still has to allocate; `neighbours` is for the states of another worker."""
    own = sum(max(0, COUNT * one.state - one.have) for one in worker)
    return own + max(0, neighbours - worker[0].keeps)


def _needs(here: Sequence[MemoryEstimate], neighbours: int) -> str:
    own = sum(one.state for one in here)
    more = f", and {_size(neighbours)} more for a neighbour's states" if neighbours else ""
    least = "at least " if any(one.at_least for one in here) else ""
    return f"saves take {least}{COUNT} times {_size(own)} of its memory{more}"


def _size(number: int) -> str:
    return f"{number / 1e9:.3g} GB" if number >= 1e6 else f"{number / 1e3:.3g} kB"
