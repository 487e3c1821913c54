"""Asking the agents of an attempt that hangs where its ranks stand, before it is ended."""

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

#: How long the answers are waited for, at most: a look of the agents, which takes 3 s where storage is far, and what
#: ranks take to print. Nor longer than so many times the silence that counts as a hang.
SECONDS, SILENCES = 10.0, 5.0

_LOOK_SECONDS = 0.25


async def with_stacks(
    by_the_clock: Callable[[], list[Event]],
    store: Store,
    state: RunState,
    hear: Callable[[], Awaitable[None]],
) -> list[Event]:
    """What the clock has to say; of ranks that hang also where they stand.

    Args:
        by_the_clock: what it says at this moment. It is asked again afterwards: the ranks may only have been slow.
        store: where the run is stored.
        state: of the run.
        hear: has the newest report read.
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
    """Where the ranks of the current attempt stand; () where nobody says. Each rank's log has all of its threads.

    Storage that fails meanwhile fails nothing: a hang is ended all the same.
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
