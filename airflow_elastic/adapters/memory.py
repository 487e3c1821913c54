"""How much memory may still be used: of the machine, and of the control groups (a pod's limit is one) we are in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of a control group are called."""

    root: Path
    limit: str
    used: str
    prefix: str  # of the counters in memory.stat that take in the groups below


_V2 = _Names(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "")
_V1 = _Names(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def free_bytes(proc: Path = Path("/proc")) -> int | None:
    """Bytes that could be taken before anything is killed for memory; None where the system does not say."""
    known = [*_of_machine(proc), *_of_groups(proc)]
    return min(known) if known else None


def _of_machine(proc: Path) -> Iterator[int]:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _of_groups(proc: Path) -> Iterator[int]:
    """Of our group and those around it: each of them has a limit of its own."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            names = _V1 if controllers else _V2
            folder = names.root / path.strip("/")
            for group in (folder, *folder.parents):
                if group.is_relative_to(names.root):
                    yield from _of_group(group, names)


def _of_group(group: Path, names: _Names) -> Iterator[int]:
    try:
        limit, used = ((group / name).read_text().strip() for name in (names.limit, names.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        # Files that are only cached are given up for whoever needs memory.
        cached = sum(int(stat.get(f"{names.prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        yield max(0, int(limit) - int(used) + cached)
