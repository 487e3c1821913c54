"""The agent's side: a socket to which its ranks connect while they are in `run.train`.

Its name is in Linux's abstract namespace, so no file is left behind. Anybody on the machine can connect, so a
connection counts by the process id that the kernel gives for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from airflow_elastic.runtime.staying.agent_link import ENVIRONMENT, NextGeneration

_CREDENTIALS = struct.Struct("3i")


#: How long a rank may take to leave its generation, or to join the next one, before its process is ended.
LEAVE_SECONDS = 5.0


class RankProcess(Protocol):
    """A rank's process."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def wait(self, timeout: float) -> int:
        """Wait until it has ended."""
        ...


@dataclass
class StayingRank:
    """A rank between two generations.

    Attributes:
        process: its process.
        environment: of its former generation.
        since: when it got the order to leave, on the monotonic clock.
    """

    process: RankProcess
    environment: dict[str, str]
    since: float = field(default_factory=time.monotonic)


@dataclass
class _Link:
    """One connection. `left`: why its rank has left its generation; None while it has not. `joined`: the next one."""

    socket: socket.socket
    pid: int
    told: bool = False
    left: str | None = None
    joined: bool = False
    unread: bytes = b""


class RankLinks:
    """The connections of an agent's ranks, by process id."""

    def __init__(self) -> None:
        self._name = f"airflow-elastic-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._listener.bind(f"\0{self._name}")
        self._listener.listen()
        self._listener.setblocking(False)
        self._ready = select.epoll()
        self._ready.register(self._listener, select.EPOLLIN)
        self._links: dict[int, _Link] = {}
        weakref.finalize(self, _close, self._listener, self._ready, self._links)

    def environment(self) -> dict[str, str]:
        """The variable by which ranks find it."""
        return {ENVIRONMENT: self._name}

    def fileno(self) -> int:
        """A descriptor that can be read when a rank has said something: then call `look`."""
        return self._ready.fileno()

    def look(self, seconds: float = 0.0) -> None:
        """Read what ranks have said. Waits at most so long for something."""
        for descriptor, _ in self._ready.poll(seconds):
            if descriptor == self._listener.fileno():
                self._accept()
            else:
                self._read(descriptor)

    def can_stay(self, pid: int) -> bool:
        """Whether the process is in `run.train`."""
        return self._of(pid) is not None

    def left(self, pid: int) -> str | None:
        """`parked` or `broken`, if the process has left its generation."""
        link = self._of(pid)
        return link.left if link else None

    def was_told(self, pid: int) -> bool:
        """Whether the process has the order to leave."""
        link = self._of(pid)
        return link is not None and link.told

    def tell_to_leave(self, pid: int) -> None:
        """Order the process to leave its generation."""
        if (link := self._of(pid)) is not None and not link.told:
            link.told = True
            self._say(link, {"leave": True})

    def join(self, pid: int, following: NextGeneration, seconds: float) -> bool:
        """Have the process join the next generation. Returns False if it does not say so in time."""
        link = self._of(pid)
        if link is None or link.left is None:
            return False
        link.told, link.left, link.joined = False, None, False
        self._say(link, following.encoded())
        self._wait(lambda: link.joined or not self.can_stay(pid), seconds)
        return link.joined

    def await_leaving(self, pid: int, seconds: float) -> bool:
        """Wait until the process has left. Returns False if it cannot stay, or does not leave in time."""
        self._wait(lambda: self.left(pid) is not None or not self.can_stay(pid), seconds)
        return self.left(pid) is not None

    def _wait(self, holds: Callable[[], bool], seconds: float) -> None:
        """Listen to ranks until a condition holds, at most for so many seconds."""
        until = time.monotonic() + seconds
        while not holds() and (left := until - time.monotonic()) > 0:
            self.look(left)

    def _of(self, pid: int) -> _Link | None:
        return next((link for link in self._links.values() if link.pid == pid), None)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            connection.settimeout(1.0)  # what is said is short; a stopped process must not stop its agent
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _group = _CREDENTIALS.unpack(told)
            if user != os.geteuid():
                connection.close()
                return
            self._links[connection.fileno()] = _Link(connection, pid)
            self._ready.register(connection, select.EPOLLIN)

    def _read(self, descriptor: int) -> None:
        link = self._links[descriptor]
        try:
            said = link.socket.recv(4096)
        except OSError:
            said = b""
        if not said:
            self._drop(link)
            return
        *lines, link.unread = (link.unread + said).split(b"\n")
        for line in lines:
            message = json.loads(line)
            link.left = message.get("left", link.left)
            link.joined = message.get("joined", link.joined)

    def _say(self, link: _Link, what: dict[str, object]) -> None:
        try:
            link.socket.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            self._drop(link)

    def _drop(self, link: _Link) -> None:
        self._ready.unregister(link.socket)
        del self._links[link.socket.fileno()]
        link.socket.close()


def _close(listener: socket.socket, ready: select.epoll, links: dict[int, _Link]) -> None:
    for one in [listener, *(link.socket for link in links.values())]:
        one.close()
    ready.close()
