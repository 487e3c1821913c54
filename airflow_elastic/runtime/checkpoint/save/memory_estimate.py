"""What saving takes of a worker's memory: said before the first step, and refused there where it is not to be had."""

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

    from airflow_elastic.runtime.checkpoint.save.staging import Layout
    from airflow_elastic.runtime.checkpoint.save.staging_area import StagingArea
    from airflow_elastic.runtime.collectives.process_group import Collectives

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What the saves of one rank take, in bytes.

    Attributes:
        state: what it holds of a state, `COUNT` times.
        kept: how much of it a neighbour keeps as well; 0 where nobody does.
        have: what its agent has of that already.
        keeps: what its agent has already for a neighbour's.
        at_least: there may be more of the state: an optimizer has not told yet what it keeps.
    """

    state: int
    kept: int
    have: int
    keeps: int = 0
    at_least: bool = False


def estimate_memory(stage: StagingArea, plan: Layout, *, at_least: bool = False) -> MemoryEstimate:
    """That of a rank."""
    kept = 0 if stage.keeps is None else plan.kept_bytes
    return MemoryEstimate(plan.total_bytes, kept, stage.have_bytes, stage.keeps or 0, at_least)


def check_memory(mine: MemoryEstimate | None, ranks: Collectives, procs: int) -> None:
    """Say what saving takes, where that is known. All ranks call this together.

    Args:
        mine: of this rank; None where it is not known yet.
        ranks: this rank among the others.
        procs: ranks of a worker.

    Raises:
        InvalidInput: a worker has not so much memory, or workers have not that share it; told on all ranks alike.
    """
    each = ranks.gather((mine, free_memory(), this_node().partition("/")[0]))
    sizes = [one for one, _, _ in each if one is not None]
    if len(sizes) < len(each):
        return
    workers = [sizes[at : at + procs] for at in range(0, len(sizes), procs)]
    neighbours = COUNT * max(sum(one.kept for one in worker) for worker in workers)
    wanted = [_wanted(worker, neighbours) for worker in workers]
    shares = _shares([places for _, places, _ in each], procs)
    for free, here in shares:
        if sum(wanted[one] for one in here) > free:
            most = max(here, key=wanted.__getitem__)
            told = _told(workers[most], neighbours)
            buddies = ", or turn checkpoint.buddies off" if neighbours else ""
            if len(here) == 1:
                raise InvalidInput(
                    f"worker {most} has not the memory to save into: {told}, and only {free / 1e9:.3g} GB are free. "
                    f"Give workers more memory, or more workers less each{buddies}"
                )
            raise InvalidInput(
                f"{each[most * procs][2]} has not the memory that its workers {', '.join(map(str, here))} save into: "
                f"they want {sum(wanted[one] for one in here) / 1e9:.3g} GB, and only {free / 1e9:.3g} GB are free "
                f"there. Of the largest of them, {told}. Give it more memory, or fewer of the workers{buddies}"
            )
    number, rank = divmod(ranks.rank, procs)
    if rank == 0 and (mine_of := [share for share in shares if number in share[1]]):
        free, here = min(mine_of)
        shared = f" for workers {', '.join(map(str, here))} together" if len(here) > 1 else ""
        log.info(
            "worker %d: %s; %s are free%s", number, _told(workers[number], neighbours), _size(free), shared
        )


def _shares(each: Sequence[Mapping[str, int]], procs: int) -> list[tuple[int, list[int]]]:
    """How many bytes are free of each piece of memory, and for what workers; first what is a worker's own.

    Args:
        each: what each rank has found free.
        procs: ranks of a worker.
    """
    free, workers = dict[str, int](), defaultdict[str, list[int]](list)
    for rank, places in enumerate(each):
        for place, size in places.items():
            free[place] = min(size, free.get(place, size))
            if rank // procs not in workers[place]:
                workers[place].append(rank // procs)
    return sorted(((size, workers[place]) for place, size in free.items()), key=lambda one: len(one[1]))


def _wanted(worker: Sequence[MemoryEstimate], neighbours: int) -> int:
    """What a worker's agent does not have yet; `neighbours` is what it keeps of another's."""
    own = sum(max(0, COUNT * one.state - one.have) for one in worker)
    return own + max(0, neighbours - worker[0].keeps)


def _told(here: Sequence[MemoryEstimate], neighbours: int) -> str:
    own = sum(one.state for one in here)
    more = f", and {_size(neighbours)} more for what it keeps of a neighbour's" if neighbours else ""
    least = "at least " if any(one.at_least for one in here) else ""
    return f"saves take {least}{COUNT} times {_size(own)} of its memory{more}"


def _size(number: int) -> str:
    return f"{number / 1e9:.3g} GB" if number >= 1e6 else f"{number / 1e3:.3g} kB"
