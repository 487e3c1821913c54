"""The fork server of a worker: a process that has imported torch once, and is forked for each of the worker's ranks.

Most of the time that a rank needs to start goes into importing torch, and the modules that torch imports with its first
optimizer. A forked rank begins with the script, and shares the memory of these imports with the other ranks.

The server is an ordinary child of the agent (`runtime/rank/forked.py`). It ends with the agent, because its socket ends
then. It is optional: without it, each rank starts in a new process, and imports torch itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.host.processes import readable, take_orphans
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: Memory that must stay free for the ranks; and that of one server's imports.
KEEP_BYTES, EACH_BYTES = 1 << 30, 1 << 29

#: How long a fork may take, which needs some milliseconds.
FORK_SECONDS = 60.0

_GONE_SECONDS = 1.0

#: How often the agent looks for orders while the server imports.
_LOOK_SECONDS = 0.25


class ForkedRank:
    """A rank that the server has forked. It is a child of the agent, as its parent has ended: see `man 2 prctl`.

    Attributes:
        pid: its process id, which is that of its process group, too.
        returncode: how it has ended, negative for a signal; None while it runs, as far as anybody has looked.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                readable(descriptor, seconds)
            finally:
                os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"rank with process {self.pid}", seconds)
        return code

    def reap(self) -> bool:
        """Once it has ended, reap the processes that it has left to the agent. Returns whether none of them lives."""
        if self.returncode is None:
            return False
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False


def _is_child(pid: int) -> bool:
    """Whether a process is this one's child. If it is not, nobody learns how it ends, and it is killed."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        log.warning("process %d is not a child of its agent, and is killed", pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return False
    return True


class ForkServer:
    """The fork server of one worker. Raises no errors: a rank will run into the same problem, and report it.

    Args:
        node: the worker. Its process must not have changed to the run's working folder yet.
    """

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._folder = os.path.abspath(node.record.spec.working_dir or ".")
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._ranks: list[ForkedRank] = []

    def begin(self) -> None:
        """Start it, unless it lives, or there is no memory for it."""
        if self._server is not None and self._server.poll() is None:
            return
        self.end()
        free = free_bytes()
        if free is not None and free < KEEP_BYTES + EACH_BYTES * self._node.neighbours:
            log.info("only %.3g GB of memory are free: each rank imports torch itself", free / 1e9)
            return
        ours, theirs = socket.socketpair()
        try:
            if command := self._command():
                self._server = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    cwd=self._folder,
                    env={**os.environ, **self._node.environment()},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._socket = ours
                take_orphans()  # ranks, when the process that has forked them ends
        except (OSError, ElasticError) as error:
            log.info("each rank imports torch itself: %s", error)
        finally:
            theirs.close()
            if self._socket is None:
                ours.close()

    def _command(self) -> list[str]:
        spec = self._node.record.spec
        launcher = find_launcher(spec.launcher)
        return launcher.fork_server(spec, self._node.record.python) if launcher.fork_server else []

    def look(self) -> None:
        """Reap what ranks have left, and start another server if it has died.

        The kernel may have killed it for memory, which is no sign against a rank.
        """
        self._ranks = [rank for rank in self._ranks if not rank.reap()]
        if self._server is not None and self._server.poll() is not None:
            self._node.count_kills()
            self.begin()

    def fork(self, command: Sequence[str], environment: dict[str, str], output: Path) -> ForkedRank | None:
        """Start a rank. Waits until the server has imported torch.

        Args:
            command: command of the rank.
            environment: complete environment of the rank.
            output: file for its output.

        Returns:
            The rank; None if there is no server, or it could not import or fork.
        """
        order = {"command": command, "environment": environment, "output": str(output), "folder": os.getcwd()}
        try:
            if self._socket is None or not self._imported():
                return None
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            pid = self._answer(FORK_SECONDS)
        except OSError as error:
            pid = str(error)
        if not pid.isdigit():
            log.warning("the fork server did not fork (%s): ranks import torch themselves", pid or "it ended")
            self.end()
            return None
        if pid == "0" or not _is_child(int(pid)):
            return None
        self._ranks.append(rank := ForkedRank(int(pid)))
        return rank

    def _imported(self) -> bool:
        """Wait until the server has imported torch. Returns False if it could not."""
        if not self._ready:
            began = time.monotonic()
            answer = self._answer()
            self._ready = answer == "ready"
            if self._ready:
                log.info("the fork server is ready, after a wait of %.1f s", time.monotonic() - began)
            else:
                log.info("each rank imports torch itself: the fork server %s", answer or "ended")
                self.end()
        return self._ready

    def _answer(self, seconds: float = float("inf")) -> str:
        """The next line of the server; "" if it has ended, or is too late, or the worker has to stop."""
        if self._socket is None:
            return ""
        said, until = b"", time.monotonic() + seconds
        while not said.endswith(b"\n"):
            while not readable(self._socket.fileno(), _LOOK_SECONDS):
                if self._node.stop_at is not None or time.monotonic() > until:
                    return ""
            if not (byte := self._socket.recv(64)):
                return ""
            said += byte
        return said.decode().strip()

    def end(self) -> None:
        """End it. Its ranks go on."""
        server, self._server, self._ready = self._server, None, False
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if server is not None:
            server.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(_GONE_SECONDS)
