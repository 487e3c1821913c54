"""Moments of one process, by the epoch clock, kept in a list until somebody writes them down."""

import json
import os
import time
from pathlib import Path

MARKS: list[tuple[str, float]] = []


def process_started() -> float:
    """When this process was started: the kernel counts in hundredths of a second."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def mark(what: str, at: float | None = None) -> None:
    MARKS.append((what, time.time() if at is None else at))


def write(path: Path) -> None:
    """Whole, or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(dict(MARKS)))
    temporary.replace(path)
