"""Whether memory was short when a rank was killed: the kernel tells nobody but its own log why it sends SIGKILL."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from airflow_elastic.adapters.host.memory import Free, shortest

#: What was seen so long ago says nothing of a death.
SECONDS = 30.0

#: Memory is short where less than this share is free, or where processes wait for it for this share of the time.
SHARE, PRESSURE = 0.05, 0.10


class MemoryShortage:
    """What a worker sees of its machine's memory, and of the limits that hold for it.

    Args:
        proc: where the kernel shows what it knows.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: deque[tuple[float, Free]] = deque()
        self._kills = 0
        self.begin()

    def begin(self) -> None:
        """New ranks start: whom the kernel has killed until now was none of them."""
        self._kills = self._killed()

    def look(self) -> None:
        """Note how much is free. Called every few seconds: when a rank has been killed, what it had is free again."""
        now = time.monotonic()
        if (free := shortest(self._proc)) is not None:
            self._seen.append((now, free))
        while self._seen and self._seen[0][0] < now - SECONDS:
            self._seen.popleft()

    def signs(self) -> str | None:
        """That memory was short a moment ago, and what shows it; None where nothing does."""
        signs = []
        if self._killed() > self._kills:
            signs.append("the kernel has killed for memory on this machine")
        since = time.monotonic() - SECONDS
        least = min((free for at, free in self._seen if at >= since), key=lambda one: one.share, default=None)
        if least is not None and least.share < SHARE:
            signs.append(f"{least.bytes / 1e9:.2g} of {least.of_bytes / 1e9:.3g} GB were free")
        if (pressure := self._pressure()) >= PRESSURE:
            signs.append(f"processes waited for memory {pressure:.0%} of the last 10 s")
        return ", ".join(signs) or None

    def _killed(self) -> int:
        """How many processes the kernel has killed for memory since it was started, in whatever group."""
        for line in self._lines("vmstat"):
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0

    def _pressure(self) -> float:
        for line in self._lines("pressure/memory"):
            if line.startswith("full "):
                return float(line.split()[1].removeprefix("avg10=")) / 100
        return 0.0

    def _lines(self, name: str) -> list[str]:
        try:
            return (self._proc / name).read_text().splitlines()
        except OSError:  # a kernel without it
            return []
