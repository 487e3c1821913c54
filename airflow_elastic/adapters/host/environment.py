"""The environment of this process, as its own code sees it and as `/proc/PID/environ` shows it to others.

The kernel shows the memory that it has filled at the start of the process; `os.environ` is stored elsewhere. A process
that was forked, and becomes another, writes to both: runs find their processes by what the kernel shows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

#: A variable that keeps memory free, so that a larger environment fits.
ROOM = "AIRFLOW_ELASTIC_ROOM"


def with_room(environment: Mapping[str, str], size: int) -> dict[str, str]:
    """The environment for a process whose forks may need so many bytes more."""
    return {**environment, ROOM: "x" * size}


def fits(environment: Mapping[str, str]) -> bool:
    """Whether `take` can show it to others."""
    begin, end = _block()
    return len(_encoded(environment)) <= end - begin


def take(environment: Mapping[str, str]) -> None:
    """Have this environment, and nothing of the former one. If it does not fit, others still see the former one."""
    os.environ.clear()  # so that the C library has no pointers into the block
    os.environ.update(environment)
    data, (begin, end) = _encoded(environment), _block()
    if len(data) <= end - begin:
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, data, len(data))


def _encoded(environment: Mapping[str, str]) -> bytes:
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())


def _block() -> tuple[int, int]:
    """Where the kernel reads this process's environment: `env_start` and `env_end` of `man 5 proc_pid_stat`."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[47]), int(fields[48])
