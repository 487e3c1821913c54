"""Renews the status document while a controller waits long for one thing, such as the grace of ending workers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

#: After so long the document is not renewed any more: the controller may be stuck forever.
LONGEST_SECONDS = 300.0


@asynccontextmanager
async def refreshing_status(
    publish: Callable[[], Awaitable[None]], last_at: Callable[[], float], seconds: float
) -> AsyncIterator[None]:
    """Publish at intervals during the block, unless something else does.

    Args:
        publish: writes the status document.
        last_at: when it was last written, on the monotonic clock.
        seconds: the interval.
    """
    over = asyncio.Event()
    task = asyncio.create_task(_refresh(publish, last_at, seconds, over))
    try:
        yield
    except BaseException:  # also where the loop shuts down
        task.cancel()
        raise
    over.set()
    # A late write must not overtake the next one. Not `await task`: that forwards a cancellation to the task. If the
    # task has just ended, the cancellation is lost.
    await asyncio.wait({task})
    task.result()


async def _refresh(
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
            with contextlib.suppress(StoreError):  # the next use of the store meets the same error
                await publish()
