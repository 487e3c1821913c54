"""What is done about a hang before the attempt is ended: ask for stacks; decide whether the next ranks are forked."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.reports import (
    ColdStart,
    order_stacks,
    read_cold_start,
    read_stacks,
    write_cold_start,
)
from airflow_elastic.core.health.stack_comparison import grouped
from airflow_elastic.core.restart import has_begun
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.events import Stalled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.stacks import Stack

#: The longest wait for answers, in seconds. A look of the agents takes 3 s on slow storage, and ranks take time to
#: print. The wait is also at most SILENCES times the silence that counts as a hang.
SECONDS, SILENCES = 10.0, 5.0

_LOOK_SECONDS = 0.25


async def with_stacks(
    by_the_clock: Callable[[], list[Event]],
    store: Store,
    state: RunState,
    hear: Callable[[], Awaitable[None]],
) -> list[Event]:
    """The events of the clock; for a hang, with the stacks of the ranks, and whether forks may be why.

    Args:
        by_the_clock: returns these events. It is called again after the wait: the ranks may only have been slow.
        store: where the run is stored.
        state: of the run.
        hear: reads the newest report.
    """
    events = by_the_clock()
    if not any(isinstance(event, Stalled) for event in events):
        return events
    stacks = await ask_for_stacks(store, state)
    await hear()
    return [
        replace(event, stacks=stacks, of_fork=await _may_be_of_fork(event, store, state))
        if isinstance(event, Stalled)
        else event
        for event in by_the_clock()
    ]


async def _may_be_of_fork(hang: Stalled, store: Store, state: RunState) -> bool:
    """Whether ranks may hang because they are forks: no start of the run has come to a first step.

    Then the next ones start in new processes. `longest_start` does not count starts before the run was reopened.
    """
    never = hang.step is None and hang.longest_start is None and not has_begun(state)
    if not never or not find_launcher(state.spec.launcher).forks(state.spec):
        return False
    try:
        cold = await asyncio.to_thread(read_cold_start, store)
        if cold is None:
            cold = ColdStart(hang.at, hang.attempt)
            await asyncio.to_thread(write_cold_start, store, cold)
    except StoreError:
        return False
    return cold.attempt == hang.attempt


async def ask_for_stacks(store: Store, state: RunState) -> tuple[Stack, ...]:
    """The stacks of the current attempt's ranks; () if no agent answers. Each rank's log has all of its threads.

    Errors of storage are ignored: the hang is ended all the same.
    """
    attempt, request = state.attempt, uuid.uuid4().hex[:8]
    workers = attempt.workers if attempt.members is None else len(attempt.members)
    until = time.monotonic() + min(SECONDS, SILENCES * state.spec.health.no_progress_seconds)
    try:
        await asyncio.to_thread(order_stacks, store, attempt.number, request)
        while True:
            told = await asyncio.to_thread(read_stacks, store, attempt.number, request)
            if len(told) >= workers or time.monotonic() > until:
                return grouped(one for ranks in told for one in ranks)
            await asyncio.sleep(_LOOK_SECONDS)
    except StoreError:
        return ()
