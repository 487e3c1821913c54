"""What the processes of a run use of the machine, each kind by itself, and whether that grows.

A rank has more memory and threads than an agent or the node host. So the most that any process has would hide what they
lose.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from airflow_elastic.adapters.host.processes import Process
from airflow_elastic.engines.local.engine import state_folder
from airflow_elastic.engines.local.host import NodeHost
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.testing.processes import read
from tests.support.driving import left_over

#: By kind of process and what it uses, such as `agent threads`: of the one that uses most. `shared files` and
#: `shared bytes` are memory without a name, of all processes together.
Use = Mapping[str, int]

#: What may come on top of what is used at first: a process may just begin or end, and a controller knows each attempt.
_MORE = {"processes": 1, "threads": 1, "descriptors": 2, "files": 2, "bytes": 8 << 20}


def of(uri: Path | str) -> Use:
    """What the processes of a run of the local engine use now, and this one. Those that end meanwhile do not count."""
    found, shared = defaultdict[str, list[tuple[int, int, int]]](list), dict[int, int]()
    host = NodeHost(state_folder(str(uri))).process()
    for process in (Process.of(os.getpid()), *left_over(uri)):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            assert process is not None
            folder = Path(f"/proc/{process.pid}")
            kind = _kind(process, folder, host)
            has = len(os.listdir(folder / "task")), len(os.listdir(folder / "fd")), _own_bytes(folder)
            found[kind].append(has)
            shared.update(_shared(folder))
    used = {"shared files": len(shared), "shared bytes": sum(shared.values())}
    for kind, all_of_it in found.items():
        used[f"{kind} processes"] = len(all_of_it)
        names = (f"{kind} {what}" for what in ("threads", "descriptors", "bytes"))
        used.update(zip(names, map(max, zip(*all_of_it, strict=True)), strict=True))
    return used


def grows(uses: Sequence[Use]) -> str | None:
    """What grows, from the first quarter to the last; None if nothing does, or there are too few to tell.

    The very first does not count, because not everything is there yet.
    """
    quarter = len(uses) // 4
    if not quarter:
        return None
    for name in sorted({name for one in uses for name in one}):
        first, last = (
            median(one.get(name, 0) for one in some) for some in (uses[1 : quarter + 1], uses[-quarter:])
        )
        what = name.split()[-1]
        if last > first + _MORE[what]:
            return f"{name}: {first:.0f}, then {last:.0f}"
    return None


def _kind(process: Process, folder: Path, host: Process | None) -> str:
    """`rank-0`, `fork-server`, `host`, `agent` (which is a fork of the host), `controller` (this one) or `other`."""
    name = (folder / "comm").read_text().strip()
    if process.pid == os.getpid():
        return "controller"
    if name.startswith("rank-") or name == WAITING:
        return name
    if process == host:
        return "host"
    seen = read(process.pid)
    return "agent" if seen and host and seen.parent == host.pid else "other"


def _own_bytes(folder: Path) -> int:
    """Its memory that is of no file, also what a fork still shares with others.

    What only this process has grows without a leak: when it writes to shared pages, or other processes end.
    """
    lines = (folder / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


def _shared(folder: Path) -> Iterator[tuple[int, int]]:
    """The files in memory without a name that a process has open: their inodes, and their bytes.

    Python's mappings keep their files open.
    """
    for one in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(one).startswith("/memfd:"):
                about = one.stat()
                yield about.st_ino, about.st_blocks * 512
