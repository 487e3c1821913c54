"""Whether memory was short when a rank was killed: only the kernel's own log says why it sends SIGKILL."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from airflow_elastic.adapters.host.memory import Free, shortest

#: Older observations say nothing about the end of a rank.
SECONDS = 30.0

#: Memory is short if less than this share of it is free, or if processes wait for it for this share of the time.
SHARE, PRESSURE = 0.05, 0.10


class MemoryShortage:
    """Observes the free memory of the worker's machine, and within the limits that hold for the worker.

    Args:
        proc: the folder of the proc file system.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: deque[tuple[float, Free]] = deque()
        self._kills = 0
        self.begin()

    def begin(self) -> None:
        """Note, before new ranks start, how many processes the kernel has killed for memory so far."""
        self._kills = self._killed()

    def look(self) -> None:
        """Note how much memory is free. Called every few seconds, because the memory of a killed rank is free again."""
        now = time.monotonic()
        if (free := shortest(self._proc)) is not None:
            self._seen.append((now, free))
        while self._seen and self._seen[0][0] < now - SECONDS:
            self._seen.popleft()

    def signs(self) -> str | None:
        """The signs that memory was short a moment ago, as a sentence; None if there are none."""
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
        """How many processes of the whole machine the kernel has killed for memory since it started."""
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
