"""How much memory is still free: on the machine, and in our control groups (a pod's limit is one)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Names:
    """What the files of a control group are called."""

    root: Path
    limit: str
    used: str
    prefix: str  # of the counters in memory.stat that include the groups below


_V2 = _Names(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "")
_V1 = _Names(Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


@dataclass(frozen=True, slots=True)
class Free:
    """How much of some memory is free, both in bytes."""

    bytes: int
    of_bytes: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.bytes / self.of_bytes if self.of_bytes else 1.0


def shortest(proc: Path = Path("/proc")) -> Free | None:
    """The smallest free share, of the machine and of the control groups that have a limit."""
    groups = (free for _, free in _of_groups(proc))
    return min((*_of_machine(proc), *groups), key=lambda free: free.share, default=None)


def limit_bytes(proc: Path = Path("/proc")) -> int | None:
    """The smallest limit of the control groups, if it is below the machine's memory; else None."""
    whole = min((free.of_bytes for free in _of_machine(proc)), default=None)
    least = min((free.of_bytes for _, free in _of_groups(proc)), default=None)
    return None if least is None or (whole is not None and least >= whole) else least


def free_bytes(proc: Path = Path("/proc")) -> int | None:
    """Bytes that can be used before the kernel kills for memory; None where the system does not say."""
    return min(free_memory(proc).values(), default=None)


def free_memory(proc: Path = Path("/proc")) -> dict[str, int]:
    """The same for the machine, and for each control group that has a limit.

    Returns:
        Free bytes, by the owner of the memory. Processes that see the same name share it: those of one machine, and
        those of one group on it.
    """
    kernel = _kernel(proc)
    whose = f"container {kernel} {socket.gethostname()}" if _is_shown_its_own(proc) else f"machine {kernel}"
    found = dict[str, int]()
    for free in _of_machine(proc):
        found[whose] = free.bytes
    for group, free in _of_groups(proc):
        # By its inode: in a container the path of a mount says nothing.
        found[f"group {kernel} {group.stat().st_ino}"] = free.bytes
    return found


def _kernel(proc: Path) -> str:
    """Names the kernel that owns the memory: containers of a machine share it, virtual machines do not."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def _is_shown_its_own(proc: Path) -> bool:
    """Whether a container sees its own limits in the files of the machine, as lxcfs mounts them there."""
    try:
        return (proc / "meminfo").stat().st_dev != proc.stat().st_dev
    except OSError:
        return False


def _of_machine(proc: Path) -> Iterator[Free]:
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return
    pairs = (line.partition(":") for line in lines)
    sizes = {
        name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if name in ("MemAvailable", "MemTotal")
    }
    if "MemAvailable" in sizes:
        yield Free(sizes["MemAvailable"], sizes.get("MemTotal", 0))


def _of_groups(proc: Path) -> Iterator[tuple[Path, Free]]:
    """The free memory of our control group and of its parents: each of them may have a limit of its own."""
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
                    yield from ((group, free) for free in _of_group(group, names))


def _of_group(group: Path, names: _Names) -> Iterator[Free]:
    try:
        limit, used = ((group / name).read_text().strip() for name in (names.limit, names.used))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit != "max":
        # The kernel drops cached files when a process needs memory.
        cached = sum(int(stat.get(f"{names.prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
        yield Free(max(0, int(limit) - int(used) + cached), int(limit))
