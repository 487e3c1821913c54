"""What processes use of the machine, and whether that grows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

#: What may come on top of what is used at first: a process may just begin or end.
_MORE = {"processes": 1, "threads": 1, "descriptors": 2}


@dataclass(frozen=True)
class Use:
    """What processes use: all of them, or the one that uses most."""

    processes: int
    threads: int
    descriptors: int
    private_bytes: int


def of(pids: Iterable[int]) -> Use:
    """What these use now. Those that end meanwhile do not count."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            folder = Path(f"/proc/{pid}")
            found.append(
                (len(os.listdir(folder / "task")), len(os.listdir(folder / "fd")), _private_bytes(folder))
            )
    threads, descriptors, private_bytes = map(max, zip(*found, strict=True))
    return Use(len(found), threads, descriptors, private_bytes)


def grows(uses: Sequence[Use]) -> str | None:
    """What grows, from the first quarter to the last; None if nothing does, or there are too few to tell.

    The very first does not count, because not everything is there yet.
    """
    quarter = len(uses) // 4
    if not quarter:
        return None
    first, last = (
        {name: median(asdict(one)[name] for one in some) for name in asdict(uses[0])}
        for some in (uses[1 : quarter + 1], uses[-quarter:])
    )
    for name, more in _MORE.items():
        if last[name] > first[name] + more:
            return name
    return "private_bytes" if last["private_bytes"] > 1.2 * first["private_bytes"] else None


def _private_bytes(folder: Path) -> int:
    lines = (folder / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
