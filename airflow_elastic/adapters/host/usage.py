"""What the processes of a worker use of their machine: processors, memory and network, as Linux counts them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

#: Of the fields in `stat` that follow the name of a process.
_PARENT, _USER, _SYSTEM, _STARTED = 1, 11, 12, 19


@dataclass(frozen=True, slots=True)
class Usage:
    """What processes use together. None: unknown.

    Attributes:
        pids: the processes, with their children.
        cpu: processors in use since the last measurement; 1.5 are one and a half.
        memory_bytes: memory of their own, and what they share once.
    """

    pids: frozenset[int] = frozenset()
    cpu: float | None = None
    memory_bytes: int | None = None


class ProcessMeter:
    """Measures processes and their children, from one measurement to the next.

    Args:
        proc: the folder of the proc file system.
        clock: returns seconds, monotonic.
    """

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._ticks: dict[tuple[int, int], int] = {}
        self._at: float | None = None

    def measure(self, pids: Iterable[int]) -> Usage:
        """What these processes and their children use. Processors are known from the second call on."""
        stats = dict(_stats(self._proc))
        family = _family(set(pids), stats)
        ticks = {
            (pid, int(stats[pid][_STARTED])): int(stats[pid][_USER]) + int(stats[pid][_SYSTEM])
            for pid in family
        }
        now, before, at = self._clock(), self._ticks, self._at
        self._ticks, self._at = ticks, now
        if not family:
            return Usage()
        # A new process has used all its time since the last measurement. One that is gone is not counted.
        used = sum(max(0, value - before.get(key, 0)) for key, value in ticks.items()) / _tick()
        cpu = used / (now - at) if at is not None and now > at else None
        return Usage(frozenset(family), cpu, _memory(self._proc, family))


class NetworkMeter:
    """Measures what goes over the network interfaces of this machine, or of this pod, without the loopback."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._before: tuple[float, int, int] | None = None

    def measure(self) -> tuple[float | None, float | None]:
        """Bytes received and sent a second since the last call; None in the first one, or where it is unknown."""
        received, sent = 0, 0
        try:
            for line in (self._proc / "self/net/dev").read_text().splitlines():
                name, colon, numbers = line.partition(":")
                if colon and name.strip() != "lo":
                    fields = numbers.split()
                    received, sent = received + int(fields[0]), sent + int(fields[8])
        except (OSError, ValueError, IndexError):
            return None, None
        now, before = (self._clock(), received, sent), self._before
        self._before = now
        if before is None or now[0] <= before[0]:
            return None, None
        passed = now[0] - before[0]
        return max(0.0, (received - before[1]) / passed), max(0.0, (sent - before[2]) / passed)


def _stats(proc: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each process that runs, after its name."""
    for entry in os.listdir(proc):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                text = (proc / entry / "stat").read_text()
                # The name, in brackets, may contain spaces and brackets.
                yield int(entry), text[text.rindex(")") + 2 :].split()


def _family(pids: set[int], stats: dict[int, list[str]]) -> set[int]:
    """Those of the processes that run, and all that descend from them."""
    children: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        children.setdefault(int(fields[_PARENT]), []).append(pid)
    found, open_ = set[int](), [pid for pid in pids if pid in stats]
    while open_:
        pid = open_.pop()
        if pid not in found:
            found.add(pid)
            open_ += children.get(pid, ())
    return found


def _memory(proc: Path, pids: Iterable[int]) -> int:
    own, shared = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, resident, common, *_ = map(int, (proc / str(pid) / "statm").read_text().split())
            own, shared = own + resident - common, max(shared, common)
    return (own + shared) * os.sysconf("SC_PAGE_SIZE")


def _tick() -> float:
    return float(os.sysconf("SC_CLK_TCK"))
