"""One read for all who ask within a while.

What was read is kept for those who ask soon after. Who asks while a read is under way waits for the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from airflow_elastic.adapters.host.event_loop import end_task

#: What nobody has asked for since then is forgotten.
FORGET_SECONDS = 300.0


class SharedReads:
    """The newest results of reads, by key. For one event loop."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, key: Hashable, seconds: float, read: Callable[[Any], Awaitable[Any]]) -> Any:
        """The result of a read that began at most `seconds` ago; or of a new one, if there is none.

        An error is a result, too: all who ask within `seconds` get it.

        Args:
            key: what is read.
            seconds: how old the result may be.
            read: reads it. It gets the last result without an error, or None.
        """
        now = asyncio.get_running_loop().time()
        began, task = self._begun.get(key, (now, None))
        if task is None or (task.done() and now - began >= seconds):
            self._forget(now)
            # A task of its own: the first who asks may be cancelled, while others wait for it too.
            task = asyncio.create_task(_run(read, _result(task)), name=f"read {key}")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # all may have gone
            self._begun[key] = now, task
        await asyncio.wait([task])
        if (error := task.exception()) is not None:  # raised again and again, it would collect frames
            raise error.with_traceback(None)
        return task.result()

    async def close(self) -> None:
        """End the reads that are under way."""
        for _, task in self._begun.values():
            if not task.done():
                await end_task(task)

    def _forget(self, now: float) -> None:
        old = [key for key, (at, task) in self._begun.items() if task.done() and now - at > FORGET_SECONDS]
        for key in old:
            del self._begun[key]


async def _run(read: Callable[[Any], Awaitable[Any]], former: Any) -> Any:
    return await read(former)


def _result(task: asyncio.Task[Any] | None) -> Any:
    return None if task is None or task.cancelled() or task.exception() else task.result()
