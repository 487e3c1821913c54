"""Sending what is saved no faster than training can bear (`core.throttle` says how fast that is)."""

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

_SHARE = 0.4  # of the time between two saves, within which one is sent: there is more to do before it counts
_LOOK_SECONDS = 0.25

#: Words of ranks that do no step until something is written, or none any more.
_HURRY = (shared_page.WAITING, shared_page.PARK, shared_page.PARKED, shared_page.FINISHED)


class SendThrottle:
    """The speed at which a worker's agent sends what its ranks have saved.

    Args:
        pages: gives those of its ranks, which take their steps together.
        where: it is sent, for the log.
    """

    def __init__(self, pages: Callable[[], Sequence[Path]], where: str = "storage") -> None:
        self._pages, self._where, self._throttle = pages, where, Throttle()
        self._lock = threading.Lock()
        self._sent, self._next_at = 0, 0.0
        self._staged: list[float] = []  # when states were, that were sent
        self._lifted, self._lifters = threading.Event(), 0

    @contextlib.contextmanager
    def sending(self, size: int, staged_at: float) -> Iterator[None]:
        """While a state is sent.

        Args:
            size: of it, in bytes.
            staged_at: when it was saved, in seconds on a clock: it is to be there well before the next one is.
        """
        self._staged = [*self._staged[-2:], staged_at]
        # The shortest: a save that was left out, or a pause, is no reason to take longer for all that follow.
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
        """How long a state would have taken that took so many seconds, had nothing been held back; in seconds."""
        with self._lock:
            return self._throttle.at_best(size, seconds)

    @contextlib.contextmanager
    def pace(self, size: int) -> Iterator[None]:
        """Around a part of it, of `size` bytes: waits for its turn, unless somebody is in a hurry, or nobody trains."""
        end = time.monotonic() + self._turn(size)
        while (left := end - time.monotonic()) > 0:
            if self._rate() is None:
                with self._lock:
                    self._next_at = time.monotonic()  # turns that are not waited for are nobody's
                break
            self._lifted.wait(min(left, _LOOK_SECONDS))
        self._add(size // 2)  # of parts that are on their way, half is, in the mean: many may be
        yield
        self._add(size - size // 2)

    @property
    def sent(self) -> int:
        """Bytes, so far."""
        return self._sent

    def _add(self, size: int) -> None:
        with self._lock:
            self._sent += size
            if (look := self._look()) is not None:
                self._throttle.sending(look)

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """While somebody waits for what is sent: it goes as fast as it can."""
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
        """Bytes a second, just now; None without a limit."""
        if self._awaited():
            return None
        with self._lock:
            return self._throttle.rate_beside(self._look())

    def _awaited(self) -> bool:
        """Whether somebody waits for what is sent: an agent that flushes, or ranks that stand still, or are to end."""
        if self._lifted.is_set():
            return True
        words = (shared_page.read_words(path) for path in self._pages())
        return any(one[word] for one in words if one for word in _HURRY)

    def _look(self) -> Measurement | None:
        """None where there are no ranks that tell."""
        first = min(self._pages(), default=None)
        words = shared_page.read_words(first) if first is not None else None
        if words is None:
            return None
        began = words[shared_page.FROM_STEP] + 1  # until then it starts up
        return Measurement(
            str(first),
            time.monotonic(),
            words[shared_page.STEP],
            words[shared_page.STEPPING],
            self._sent,
            began,
        )
