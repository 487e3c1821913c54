"""Showing that a controller is at work while one thing takes it long: the grace of workers that end, a long poll."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

#: Who takes longer over one thing is not shown to be at work any more: it may be stuck for ever.
LONGEST_SECONDS = 300.0


@asynccontextmanager
async def beating(
    publish: Callable[[], Awaitable[None]], last_at: Callable[[], float], seconds: float
) -> AsyncIterator[None]:
    """Publish every so many seconds meanwhile, where nobody else does.

    Args:
        publish: writes the status document.
        last_at: when that was last done, on the monotonic clock.
        seconds: how often.
    """
    over = asyncio.Event()
    task = asyncio.create_task(_beat(publish, last_at, seconds, over))
    try:
        yield
    except BaseException:  # also where this is to end at once
        task.cancel()
        raise
    over.set()
    # What it writes may not overtake what comes next. Not `await task`: that hands a cancellation on to the task,
    # which may be at its end already, and then it is lost.
    await asyncio.wait({task})
    task.result()


async def _beat(
    publish: Callable[[], Awaitable[None]], last_at: Callable[[], float], seconds: float, over: asyncio.Event
) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, last_at() + seconds - time.monotonic())):
                await over.wait()
        if over.is_set():
            return
        if time.monotonic() - last_at() >= seconds:
            with contextlib.suppress(StoreError):  # whoever needs it meets it, too
                await publish()
