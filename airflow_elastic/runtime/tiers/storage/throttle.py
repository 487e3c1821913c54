"""Limits the speed at which saves are sent, so that training keeps its own (`core.checkpoints.throttle` sets it)."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.core.checkpoints.throttle import Measurement, Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

_SHARE = 0.4  # of the time between two saves, to send one: it must also be committed before the next
_LOOK_SECONDS = 0.25

#: Flags in a rank's page: it waits for a write before its next step, or it does no more steps.
_HURRY = (shared_page.WAITING, shared_page.PARK, shared_page.PARKED, shared_page.FINISHED)


class SendThrottle:
    """The speed at which a worker's agent sends what its ranks have saved.

    Args:
        pages: returns the pages of its ranks, which take their steps together.
        where: the destination, for the log.
    """

    def __init__(self, pages: Callable[[], Sequence[Path]], where: str = "storage") -> None:
        self._pages, self._where, self._throttle = pages, where, Throttle()
        self._lock = threading.Lock()
        self._sent, self._next_at = 0, 0.0
        self._staged: list[float] = []  # when the last states that were sent had been saved
        self._lifted, self._lifters = threading.Event(), 0

    @contextlib.contextmanager
    def sending(self, size: int, staged_at: float) -> Iterator[None]:
        """Around sending a state.

        Args:
            size: size of the state in bytes.
            staged_at: when it was saved, in seconds on a monotonic clock. It should arrive well before the next save.
        """
        self._staged = [*self._staged[-2:], staged_at]
        # The shortest gap: one skipped save, or a pause, must not slow down all later saves.
        gaps = [b - a for a, b in pairwise(self._staged) if b > a]
        between = min(gaps) * _SHARE if gaps else None
        with self._lock:
            if (look := self._look()) is not None:
                self._throttle.begin(look, size, between)
            before = self._throttle.rate
        try:
            yield
        finally:
            with self._lock:
                if (look := self._look()) is not None:
                    self._throttle.end(look)
                rate = self._throttle.rate
            if rate is not None and before is None:
                log.info("saves go to %s at %.3g MB/s: training keeps its speed", self._where, rate / 1e6)

    def at_best(self, size: int, seconds: float) -> float:
        """How long sending this state would have taken without a limit, in seconds.

        Args:
            size: size of the state in bytes.
            seconds: how long it took.
        """
        with self._lock:
            return self._throttle.at_best(size, seconds)

    @contextlib.contextmanager
    def pace(self, size: int) -> Iterator[None]:
        """Around sending a part of `size` bytes: first waits its turn, unless the send is urgent or no rank trains."""
        end = time.monotonic() + self._turn(size)
        while (left := end - time.monotonic()) > 0:
            if self._rate() is None:
                with self._lock:
                    self._next_at = time.monotonic()  # drop the turns that no part waits for
                break
            self._lifted.wait(min(left, _LOOK_SECONDS))
        self._add(size // 2)  # many parts may be under way, and on average half of each is sent
        yield
        self._add(size - size // 2)

    @property
    def sent(self) -> int:
        """Bytes sent so far."""
        return self._sent

    def _add(self, size: int) -> None:
        with self._lock:
            self._sent += size
            if (look := self._look()) is not None:
                self._throttle.sending(look)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Without a limit, while a caller waits for the state to arrive."""
        with self._lock:
            self._lifters += 1
            self._lifted.set()
        try:
            yield
        finally:
            with self._lock:
                self._lifters -= 1
                if not self._lifters:
                    self._lifted.clear()

    def _turn(self, size: int) -> float:
        """Seconds until a part may be sent."""
        rate = self._rate()
        with self._lock:
            now = time.monotonic()
            if rate is None:
                self._next_at = now
                return 0.0
            at = max(now, self._next_at)
            self._next_at = at + size / rate
            return at - now

    def _rate(self) -> float | None:
        """The limit just now, in bytes a second; None without a limit."""
        if self._awaited():
            return None
        with self._lock:
            return self._throttle.rate_beside(self._look())

    def _awaited(self) -> bool:
        """Whether the send is urgent: the agent flushes, or ranks wait for it, or ranks must end."""
        if self._lifted.is_set():
            return True
        words = (shared_page.read_words(path) for path in self._pages())
        return any(one[word] for one in words if one for word in _HURRY)

    def _look(self) -> Measurement | None:
        """The progress of training; None if no rank reports it."""
        first = min(self._pages(), default=None)
        words = shared_page.read_words(first) if first is not None else None
        if words is None:
            return None
        began = words[shared_page.FROM_STEP] + 1  # the first step is start-up
        return Measurement(
            str(first),
            time.monotonic(),
            words[shared_page.STEP],
            words[shared_page.STEPPING],
            self._sent,
            began,
        )
