"""Runs of the local engine without the import of torch in each process: most of what such a run costs.

What a test's own process submits is started by forks of one process (`forked/zygote.py`): node hosts, and the ranks of
launchers that fork them. All others are real starts: those of command lines and Airflow, of other launchers, and of
tests that say `@pytest.mark.real_start`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_elastic.adapters.host.environment import with_room
from airflow_elastic.engines.local import host
from airflow_elastic.launchers.api import START_RANK
from airflow_elastic.launchers.read_early import read_early

_ZYGOTE = Path(__file__).parent / "forked" / "zygote.py"

_HOST = [sys.executable, "-u", START_RANK, "--node-host"]

#: What processes have of environment at most: it is kept free for them. The kernel takes no longer word.
_ROOM = 100_000


class Zygote:
    """One process that is forked. It ends with this one, or when it is closed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(_ZYGOTE), str(theirs.fileno())],
                env=with_room({**environment, "OMP_NUM_THREADS": "1"}, _ROOM),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._way.recv(100) == b"ready", "nothing can be forked: its own words are above"

    def host(self, state: str, environment: Mapping[str, str], log: int) -> int:
        """Start a node host; the exit code of what has started it."""
        order = {"environment": environment, "folder": os.getcwd(), "state": state}
        socket.send_fds(self._way, [json.dumps(order).encode()], [log])
        return int(self._way.recv(100) or b"1")

    def close(self) -> None:
        self._way.shutdown(socket.SHUT_RDWR)  # another fork of this process may have the socket, too
        self._way.close()
        self._process.wait()


class Zygotes:
    """One for most tests, made with the first; and one at a time for those whose environment is read early."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[str, Zygote] = {}

    def run(self, command: list[str], **how: Any) -> Any:
        """As `subprocess.run`, of the one command that is known here."""
        environment = how.get("env") or {**os.environ}
        size = sum(
            len(os.fsencode(name)) + len(os.fsencode(value)) + 2 for name, value in environment.items()
        )
        if command[:-1] != _HOST or size > _ROOM:
            return subprocess.run(command, **how)
        with self._lock:
            code = self._one_of(environment).host(command[-1], environment, how["stdout"].fileno())
        if code:
            raise subprocess.CalledProcessError(code, command)
        return subprocess.CompletedProcess(command, 0)

    def close(self) -> None:
        while self._made:
            self._made.popitem()[1].close()

    def _one_of(self, environment: Mapping[str, str]) -> Zygote:
        early = _early(environment)
        key = json.dumps(early)
        if key not in self._made:
            while len(self._made) > 1:
                self._made.popitem()[1].close()
            # It is of no run, whose processes are known by their environment.
            self._made[key] = Zygote({**os.environ, **early})
        return self._made[key]


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """What must be there before torch is imported; the number of threads can be changed (`forked/server.py`)."""
    found = read_early(environment, os.getcwd())
    found.pop("OMP_NUM_THREADS", None)
    doom = {name: value for name, value in environment.items() if name == "ELASTIC_TEST_DOOM"}
    return {**found, **doom}


@contextlib.contextmanager
def forking(zygotes: Zygotes) -> Iterator[None]:
    """Start node hosts so."""
    names = ("DEVNULL", "CalledProcessError")
    door = SimpleNamespace(run=zygotes.run, **{name: getattr(subprocess, name) for name in names})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "subprocess", door)
        yield
