"""Processes of this machine, found again after the process that started them has died.

A process id alone proves nothing, because ids are reused. Together with the start time of the process and the boot id
of the machine it names one process forever.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

_SYNC_FILE_RANGE_WRITE = 2  # of linux/fs.h
_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_MADV_POPULATE_READ = 22  # of linux/mman.h


@dataclass(frozen=True, slots=True)
class Process:
    """One process, identified forever by its id and its start time in clock ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this id now; None where there is none, or only a zombie."""
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it runs. A zombie does not."""
        return Process.of(self.pid) == self

    def open(self) -> int | None:
        """A pidfd of it, which becomes readable when it ends; None where it has ended. The caller closes it."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None
        if self.alive:  # checked while the pidfd holds the id, so it cannot be another process
            return descriptor
        os.close(descriptor)
        return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        descriptor = self.open()
        if descriptor is not None:
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                pass
            finally:
                os.close(descriptor)


def this_machine() -> str:
    """Names this machine and this boot of it. Processes with another name belong to another machine or boot."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def this_node() -> str:
    """Names the machine whose loss ends this process: a pod has its own host name, and gets this one in a variable."""
    return os.environ.get("AIRFLOW_ELASTIC_MACHINE") or this_machine()


def readable(descriptor: int, seconds: float | None = None) -> bool:
    """Wait until there is something to read, or a process has ended; False after so many seconds without either.

    `select.select` refuses descriptors from 1,024 on, which a script with many files open has.
    """
    waited = select.poll()
    waited.register(descriptor, select.POLLIN)
    return bool(waited.poll(None if seconds is None else seconds * 1000))


def marked(variable: str, value: str) -> list[Process]:
    """All processes that were started with `variable=value` in their environment, and their children."""
    needle = f"{variable}={value}\0".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                data = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:  # ended, or another user's
                continue
            process = Process.of(int(entry)) if needle in data else None
            if process is not None:
                found.append(process)
    return found


def take_orphans() -> None:
    """Be the parent of processes that descend from this one, once their own parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def be_called(name: str) -> None:
    """Set the name that `ps` and `top` show for this process; they keep 15 bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def called(processes: list[Process], name: str) -> list[Process]:
    """The processes with this name."""
    found = []
    for process in processes:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process.pid}/comm").read_text().strip() == name:
                found.append(process)
    return found


def write_back(descriptor: int, at: int, size: int) -> None:
    """Start to write a file's new content to disk, without waiting for it.

    Otherwise the kernel keeps most of it in memory until a flush, while the disk is idle.
    """
    with contextlib.suppress(AttributeError):  # a C library without it: the write only takes longer
        ctypes.CDLL(None).sync_file_range(
            *(ctypes.c_int(descriptor), ctypes.c_int64(at), ctypes.c_int64(size)), _SYNC_FILE_RANGE_WRITE
        )


def populate(mapped: mmap.mmap) -> None:
    """Load all pages of a shared mapping without holding Python's lock, as `mmap` itself would.

    A kernel before 5.14 does not know this: pages are loaded when they are used.
    """
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), _MADV_POPULATE_READ)


def out_of_memory_kills(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """How many processes of our control group the kernel has killed for memory; 0 where it does not say."""
    try:
        groups = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in groups:
        _, controllers, path = line.split(":", 2)
        v2 = controllers == ""
        if v2 or "memory" in controllers.split(","):
            root, name = (cgroup, "memory.events") if v2 else (cgroup / "memory", "memory.oom_control")
            # A container sees its own group at the mount point, not at the path that the machine uses.
            group = root / path.strip("/")
            above = (one for one in (group, *group.parents) if one.is_relative_to(root))
            try:
                text = (next((one for one in above if (one / name).exists()), group) / name).read_text()
            except OSError:
                continue
            for entry in text.splitlines():
                key, _, count = entry.partition(" ")
                if key == "oom_kill":
                    return int(count)
    return 0


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name, in brackets, may contain spaces and brackets: the other fields begin after the last one.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else fields
