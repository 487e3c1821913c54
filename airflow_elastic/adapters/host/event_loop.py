"""Ending tasks of an event loop."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_task(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait until it has ended.

    Whoever is cancelled meanwhile ends, too: awaiting the task itself, with its CancelledError suppressed, would take
    the one for the other, and go on for ever.

    Raises:
        Exception: what the task has failed with.
    """
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
