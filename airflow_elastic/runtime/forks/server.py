"""The fork server of a worker: a process that has imported torch, and is forked for each rank.

It reads orders from a socket, a line of JSON each: the rank's `command`, `environment`, `output` (a file) and `folder`.
It answers with the process id. Its agent has started it with `start_rank.py --fork-server DESCRIPTOR`. Or it was
forked, as the agent was, from a process that had imported torch. When it forks, there is no other thread: OpenBLAS ends
its own before a fork.

Python's `multiprocessing` has a fork server of the same kind, and Android's zygote is one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host.environment import ROOM, take
from airflow_elastic.adapters.host.processes import be_called, readable
from airflow_elastic.runtime.forks.child import Child
from airflow_elastic.runtime.forks.prepare import prepare, print_to, printed, seed

#: The process name of a server that has done its imports.
WAITING = "fork-server"

_GONE_SECONDS = 1.0

#: How likely the kernel kills a process when memory runs out. Restoring the former value needs no special rights.
_SCORE = Path("/proc/self/oom_score_adj")


@dataclass
class Server:
    """A fork server, as its agent sees it.

    Attributes:
        process: its process, a child of the agent.
        socket: takes orders.
        early: what it has read of its environment before, or while, it imported torch.
        ready: whether it has said that it can fork.
    """

    process: subprocess.Popen[bytes] | Child
    socket: socket.socket
    early: Mapping[str, str]
    ready: bool = False

    def end(self) -> None:
        """End it. Its ranks go on."""
        self.socket.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_GONE_SECONDS)


def serve(descriptor: int) -> list[str]:
    """Import, and fork a rank for each order, until the agent ends.

    Args:
        descriptor: of the socket.

    Returns:
        In each rank: the arguments of `start_rank.py`.
    """
    agent = socket.socket(fileno=descriptor)
    os.environ.pop(ROOM, None)
    score = _first_to_die()
    with printed() as said:
        why = prepare()
    if why is not None:
        agent.sendall(f"{why}\n".encode())
        os._exit(1)
    return _fork_ranks(agent, said, score)


def fork_server(said: int, early: Mapping[str, str], marks: Mapping[str, str]) -> Server | list[str]:
    """Fork a server from this process, which has done `prepare`.

    Args:
        said: see `printed`.
        early: what this process has read early.
        marks: variables that the server has beside those of this process.

    Returns:
        The server. In each rank, as `os.fork` returns in a child: the arguments of `start_rank.py`.
    """
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        return Server(Child(pid), ours, early)
    ours.close()
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    take({**os.environ, **marks})
    return _fork_ranks(theirs, said, _first_to_die())


def _fork_ranks(agent: socket.socket, said: int, score: str | None) -> list[str]:
    be_called(WAITING)
    agent.sendall(b"ready\n")
    orders = agent.makefile("rb")
    for line in orders:
        if (pid := fork_for_parent()) is not None:
            agent.sendall(f"{pid}\n".encode())
            continue
        orders.close()
        agent.close()
        command = _become(json.loads(line), said, score)
        return command[command.index("--") :]
    os._exit(0)


def fork_for_parent() -> int | None:
    """Fork a process that is the agent's child, with a session of its own, by the time this returns.

    It is forked by a process that ends at once: the kernel gives it to the nearest ancestor that takes such processes.

    Returns:
        Its id, or 0 if that failed; None in the process itself.
    """
    read, write = os.pipe()
    between = _fork_or_none()
    if between == 0:
        end = os.pidfd_open(os.getpid())
        if (child := _fork_or_none()) != 0:
            os._exit(child is None)
        os.setsid()
        os.write(write, str(os.getpid()).encode())
        readable(end)  # from then on the agent is the parent
        os.close(end)
    os.close(write)
    if between == 0:
        os.close(read)
        return None
    try:
        if between is None:
            return 0
        os.waitpid(between, 0)
        return int(os.read(read, 20) or b"0")
    finally:
        os.close(read)


def _fork_or_none() -> int | None:
    """As `os.fork`; None without the memory for it, or with too many processes."""
    try:
        return os.fork()
    except OSError:
        return None


def _become(order: dict[str, Any], said: int, score: str | None) -> list[str]:
    """Be the rank: with its own output, folder, environment and random numbers. Returns its command."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    os.sendfile(output, said, 0, os.fstat(said).st_size)
    print_to(output)
    os.close(output)
    os.close(said)
    os.chdir(order["folder"])
    take(order["environment"])
    _set_score(score)
    seed()
    command: list[str] = order["command"]
    return command


def _first_to_die() -> str | None:
    """Make the kernel kill this process first when memory runs out. Returns the former score."""
    with contextlib.suppress(OSError):
        before = _SCORE.read_text()
        _set_score("1000")
        return before
    return None


def _set_score(score: str | None) -> None:
    if score is not None:
        with contextlib.suppress(OSError):
            _SCORE.write_text(score)
