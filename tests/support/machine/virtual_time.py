"""An event loop whose time goes on only while everybody waits for it, and then at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Where nothing is ready, it is the time of the next timer."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """`asyncio.to_thread` calls at once: time would go on while a thread works."""

    async def here(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return call(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "to_thread", here)
        yield


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in time that passes at once."""
    with without_threads(), asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
