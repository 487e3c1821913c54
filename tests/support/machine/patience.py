"""How long tests wait, and how they wait."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

#: So long a test waits for what must come. It measures nothing: only what hangs gets there, on a busy machine too.
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.01


def until(look: Callable[[], Any], what: str) -> Any:
    """The first true answer. Raises AssertionError, with what was waited for, after `PATIENCE_SECONDS`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := look()):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        time.sleep(LOOK_SECONDS)
    return answer


async def until_async(look: Callable[[], Any], what: str) -> Any:
    """The same where an event loop goes on meanwhile; `look` may be a coroutine function."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := await found if inspect.isawaitable(found := look()) else found):
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:g} s for {what}"
        await asyncio.sleep(LOOK_SECONDS)
    return answer
