"""Ending tasks of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait until it has ended.

    If this coroutine is cancelled meanwhile, it ends too. To await the task itself and suppress its CancelledError
    would confuse the two cancellations, and go on forever.

    Raises:
        Exception: what the task has failed with.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
