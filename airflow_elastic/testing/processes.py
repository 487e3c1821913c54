"""Finding and signalling processes by the session they live in, without ever hitting a stranger.

Linux only: it reads /proc and signals through pidfds, so that a pid which was reused between looking and
signalling is never hit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One living process. Its pid and `started`, in clock ticks since boot, identify it together."""

    pid: int
    parent: int
    session: int
    started: int


def read(pid: int) -> Process | None:
    """The process with this pid, or None where there is none or only its zombie."""
    try:
        # The name, in parentheses, may itself hold spaces and parentheses: split after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if not fields or fields[0] in "ZX":
        return None
    return Process(pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def lives(child: subprocess.Popen[bytes]) -> bool:
    """Whether a child lives. A killed one with many threads is no zombie to wait for until the last of them is gone."""
    return child.poll() is None and read(child.pid) is not None


def living() -> list[Process]:
    """Every living process that this one can see."""
    found = (read(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def in_sessions(sessions: Collection[int]) -> list[Process]:
    """The living processes of these sessions (a session's id is the pid of the process that made it)."""
    return [process for process in living() if process.session in sessions]


def family(pid: int) -> list[Process]:
    """A process and its descendants in the same session, parents first; empty where it is gone."""
    root = read(pid)
    if root is None:
        return []
    others = in_sessions({root.session})
    found = [root]
    for process in found:  # Grows while it is walked.
        found.extend(child for child in others if child.parent == process.pid)
    return found


def has_environment(pid: int, entry: str) -> bool:
    """Whether the process was started with the environment entry `NAME=value`; False where that is hidden."""
    try:
        return entry.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def send(process: Process, signum: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone already, even if its pid lives again."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = read(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def end(find: Callable[[], list[Process]], *, timeout: float) -> list[Process]:
    """SIGKILL what `find` finds, again until it finds nothing (a process may fork while it is killed).

    Args:
        find: names the processes that must not live; asked again after every round.
        timeout: seconds until giving up.

    Returns:
        What still lives after the timeout: processes stuck in the kernel. Normally empty.
    """
    deadline = time.monotonic() + timeout
    while remaining := find():
        for process in remaining:
            send(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            return remaining
        time.sleep(0.02)
    return []


def last_words(log: Path, lines: int = 30, begin: str = "") -> str:
    """The end of a log file with its name, for an error's text; of the lines that begin so."""
    try:
        written = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        written = []
    last = [line for line in written if line.startswith(begin)][-lines:]
    return f"{log} ends:\n" + ("\n".join(last) or "(it is empty)")


class Sessions:
    """The sessions that one program started, noted in a file so that its successor finds what it left behind.

    Args:
        path: the file. It is removed by `forget`.
        mark: an environment entry `NAME=value` that everything started carries, and inherits.
    """

    def __init__(self, path: Path, mark: str) -> None:
        self._path, self._mark = path, mark
        self._leaders: dict[int, int] = {}

    def note(self, pid: int) -> None:
        """Remember the session of this leader, which has just started."""
        leader = read(pid)
        self._leaders[pid] = leader.started if leader else 0
        self._path.write_text(json.dumps(list(self._leaders.items())))

    def forget(self) -> None:
        """Forget all sessions, after they have ended."""
        self._leaders = {}
        self._path.unlink(missing_ok=True)

    def __contains__(self, process: Process) -> bool:
        return process.session in self._leaders

    def members(self) -> list[Process]:
        """The living processes of our sessions."""
        return in_sessions(self._leaders.keys())

    def detached(self) -> list[Process]:
        """The living processes with the mark that are in other sessions."""
        return [
            process
            for process in living()
            if process not in self and process.pid != os.getpid() and has_environment(process.pid, self._mark)
        ]

    def leftovers(self) -> list[Process]:
        """The living processes of sessions that a predecessor noted in the same file and never forgot."""
        try:
            noted = {int(pid): int(started) for pid, started in json.loads(self._path.read_text())}
        except (FileNotFoundError, ValueError):
            return []
        found = []
        for process in in_sessions(noted.keys()):
            leader = read(process.session)
            # A session without its leader may be another one under a used-again id: then the mark decides.
            known = leader is not None and leader.started == noted[process.session]
            if known or (leader is None and has_environment(process.pid, self._mark)):
                found.append(process)
        return found
