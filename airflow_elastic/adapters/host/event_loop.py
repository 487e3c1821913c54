"""Ending tasks of an event loop, and calls that may never return."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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


async def in_own_thread(call: Callable[[], T]) -> T:
    """Make a call in a thread that takes no place from others, and that the end of the program does not wait for.

    If this coroutine is cancelled, the call goes on.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, failed = None, None
        try:
            result = call()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=work, name="in-own-thread", daemon=True).start()
    return await answer
