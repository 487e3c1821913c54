"""What the memory of past runs does for one run: values at the start, speeds and a share meanwhile."""

from __future__ import annotations

import asyncio
import logging
import platform
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from airflow_elastic.adapters.host.event_loop import in_own_thread
from airflow_elastic.brain.client import Ask, Memory
from airflow_elastic.control.observer import Observer
from airflow_elastic.core.brain.learnt import with_learnt
from airflow_elastic.core.planning.known import known_of
from airflow_elastic.core.planning.plan import plan
from airflow_elastic.core.planning.words import lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.brain.proposal import Proposal
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.scaling.observation import Capacity, Share, Speed

log = logging.getLogger(__name__)

T = TypeVar("T")

#: A database that has not answered after so long does not count at this look; the same at the end of a run.
ANSWER_SECONDS, END_SECONDS = 20.0, 60.0


def proposed(spec: RunSpec, uri: str) -> tuple[Proposal, ...]:
    """What past runs propose for a new run; () without `brain`, and where nothing is known or in reach."""
    if spec.brain is None:
        return ()
    with closing(Memory()) as memory:
        return memory.proposals(spec, uri)


def as_started(spec: RunSpec, proposals: tuple[Proposal, ...]) -> RunSpec:
    """The specification that a run has which was created with these proposals: they count in mode `cluster` only."""
    return with_learnt(spec, proposals)[0] if spec.brain == "cluster" else spec


def plan_lines(specs: Sequence[RunSpec], now: float) -> Iterator[str]:
    """The plan of a run that is not created yet, from what past runs have measured.

    Args:
        specs: forms that the run may have, at least one. The first that is known to past runs counts, or else the last.
        now: epoch seconds.
    """
    with closing(Memory()) as memory:
        for spec in specs:
            if past := memory.past(spec):
                break
    return lines(spec.name, plan(spec, known_of(spec, past, None), now))


class PastRunsObserver(Observer):
    """Keeps what a run that has ended teaches, and gives its share to others.

    Args:
        store: where the run is stored.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def on_end(self, state: RunState) -> None:
        if state.spec.brain is not None:
            asked = asyncio.create_task(in_own_thread(partial(self._remember, state.spec)))
            await _answer(asked, END_SECONDS, None)

    def _remember(self, spec: RunSpec) -> None:
        with closing(Memory()) as memory:
            if spec.brain == "cluster":
                memory.leave(self._store.uri, pool_of(spec))
            memory.remember(self._store)


class PastRuns:
    """What past runs, and others that run now, say to a run that scales by its policy."""

    def __init__(self) -> None:
        self._memory = Memory()
        self._learnt: tuple[int, tuple[Speed, ...]] = 0, ()
        self._asked: asyncio.Task[object] | None = None

    async def learnt(self, state: RunState) -> tuple[Speed, ...]:
        """Step times of runs that are alike, read once an attempt."""
        if state.spec.brain in (None, "manual"):
            return ()
        if self._learnt[0] != state.attempt.number:
            nothing: tuple[Speed, ...] = ()
            found = await self._ask(partial(self._memory.learnt, state.spec), nothing)
            self._learnt = state.attempt.number, found
        return self._learnt[1]

    async def share(
        self, uri: str, state: RunState, capacity: Capacity | None, speeds: tuple[Speed, ...], there: int
    ) -> Share | None:
        """The run's share of a capacity that runs with `brain: cluster` share; None in other modes.

        `there`: how many workers it has. One that waits for room has none of the capacity yet.
        """
        if state.spec.brain != "cluster":
            return None
        free, priority = (capacity.free, capacity.priority) if capacity is not None else (None, 0)
        ask = Ask(pool_of(state.spec), there, free, priority, speeds)
        return await self._ask(partial(self._memory.share, uri, state.spec, ask), None)

    async def close(self) -> None:
        """Close the connections; a later question opens them again."""
        await self._ask(self._memory.close, None)

    async def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """The answer; `otherwise` if it does not come, or while a former question has none."""
        if self._asked is not None and not self._asked.done():
            return otherwise
        asked = asyncio.create_task(in_own_thread(question))
        self._asked = asked
        return await _answer(asked, ANSWER_SECONDS, otherwise)


async def _answer(asked: asyncio.Task[T], seconds: float, otherwise: T) -> T:
    done, _ = await asyncio.wait([asked], timeout=seconds)
    if done:
        return asked.result()
    log.warning("the memory of past runs is not used: no answer within %g s", seconds)
    return otherwise


def pool_of(spec: RunSpec) -> str:
    """The name of the capacity that a run takes its workers from: a machine, or a cluster's queue."""
    options = spec.engine_options
    if spec.engine == "local":
        return f"local:{platform.node()}"
    cluster = options.get("context") or options.get("kubeconfig") or "default"
    queue = options.get("queue") or "*"
    # A LocalQueue: each namespace has its own.
    if queue != "*" and options.get("queueing", "kueue") == "kueue":
        queue = f"{options.get('namespace') or 'default'}/{queue}"
    return f"kubernetes:{cluster}:{queue}"
