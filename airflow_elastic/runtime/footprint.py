"""What saving takes of a worker's memory: said before the first step, and refused there where it is not to be had."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.adapters.memory import free_bytes
from airflow_elastic.runtime.slots import COUNT
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_elastic.runtime.ranks import Ranks
    from airflow_elastic.runtime.stage import Stage
    from airflow_elastic.runtime.staging import Layout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the saves of one rank take, in bytes.

    Attributes:
        state: what it holds of a state, `COUNT` times.
        kept: how much of it a neighbour keeps as well; 0 where nobody does.
        have: what its agent has of that already.
        keeps: what its agent has already for a neighbour's.
    """

    state: int
    kept: int
    have: int
    keeps: int = 0


def footprint(stage: Stage, plan: Layout) -> Footprint:
    """That of a rank."""
    kept = 0 if stage.keeps is None else plan.kept_bytes
    return Footprint(plan.total_bytes, kept, stage.have_bytes, stage.keeps or 0)


def check_memory(mine: Footprint | None, ranks: Ranks, procs: int) -> None:
    """Say what saving takes, where that is known. All ranks call this together.

    Args:
        mine: of this rank; None where it is not known yet.
        ranks: this rank among the others.
        procs: ranks of a worker.

    Raises:
        InvalidInput: a worker has not so much memory, told on all ranks alike.
    """
    each = ranks.gather((mine, free_bytes()))
    known = [(one, free) for one, free in each if one is not None]
    if len(known) < len(each):
        return
    workers = [known[at : at + procs] for at in range(0, len(known), procs)]
    neighbours = COUNT * max(sum(one.kept for one, _ in worker) for worker in workers)
    for number, worker in enumerate(workers):
        here = [one for one, _ in worker]
        free = min((free for _, free in worker if free is not None), default=None)
        if free is None:
            continue
        told = _told(here, neighbours)
        wanted = max(0, neighbours - here[0].keeps)
        wanted += sum(max(0, COUNT * one.state - one.have) for one in here)
        if wanted > free:
            raise InvalidInput(
                f"worker {number} has not the memory to save into: {told}, and only {free / 1e9:.3g} GB are free. Give "
                "workers more memory, or more workers less each"
                + (", or turn checkpoint.buddies off" if neighbours else "")
            )
        if ranks.rank == number * procs:
            log.info("%s; %.3g GB are free", told, free / 1e9)


def _told(here: Sequence[Footprint], neighbours: int) -> str:
    own = sum(one.state for one in here)
    more = f", and {neighbours / 1e9:.3g} GB more for what it keeps of a neighbour's" if neighbours else ""
    return f"saves take {COUNT} times {own / 1e9:.3g} GB of its memory{more}"
