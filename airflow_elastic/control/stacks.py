"""Asks the agents of a hanging attempt for the stacks of their ranks, before the attempt is ended."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.reports import order_stacks, read_stacks
from airflow_elastic.core.health.stack_comparison import grouped
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
    """The events of the clock; for a hang, with the stacks of the ranks.

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
        replace(event, stacks=stacks) if isinstance(event, Stalled) else event for event in by_the_clock()
    ]


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
