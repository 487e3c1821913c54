"""Forks the ranks of a worker, from its fork server: a process that has imported torch once.

Most of the time that a rank needs to start goes into importing torch, and the modules that torch imports with its first
optimizer. A forked rank begins with the script, and shares the memory of these imports with the other ranks.

A server may have been forked with the agent (`node_host`). Otherwise the agent starts one (`forks/server.py`). It ends
with the agent, because its socket ends then. It is optional: without it, each rank starts in a new process, and imports
torch itself.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.environment import fits, with_room
from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.host.processes import readable, take_orphans
from airflow_elastic.adapters.records.reports import ColdStart, read_cold_start, write_cold_start
from airflow_elastic.launchers import find_launcher
from airflow_elastic.launchers.read_early import read_early
from airflow_elastic.runtime.forks.blame import may_be_of_fork
from airflow_elastic.runtime.forks.child import Child
from airflow_elastic.runtime.forks.server import Server
from airflow_elastic.spec.errors import ElasticError, StoreError

if TYPE_CHECKING:
    from airflow_elastic.adapters.records.job_files import JobRecord
    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.status import RankError

log = logging.getLogger(__name__)

#: Memory that must stay free for the ranks; and that of one server's imports.
KEEP_BYTES, EACH_BYTES = 1 << 30, 1 << 29

#: How long a fork may take, which needs some milliseconds.
FORK_SECONDS = 60.0

#: How often the agent looks for orders while the server imports.
_LOOK_SECONDS = 0.25

#: A rank's environment is larger than its server's, by about so many bytes.
_ROOM_BYTES = 8_000


def server_command(record: JobRecord) -> list[str]:
    """The command of a fork server for this job, without the descriptor; an empty list if ranks are not forked."""
    launcher = find_launcher(record.spec.launcher)
    return launcher.fork_server(record.spec, record.python) if launcher.fork_server else []


class ForkServer:
    """The fork servers of one worker. Raises no errors: a rank will run into the same problem, and report it.

    What a server has read of its environment while it imported torch must be what the rank would read. If not, it is
    not used, and another one is started: after a scale step, ranks may have another OMP_NUM_THREADS.

    Args:
        node: the worker. Its process must not have changed to the run's working folder yet.
        inherited: a server that was forked with the agent, if there is one.
    """

    def __init__(self, node: Worker, inherited: Server | None = None) -> None:
        self._node, self._inherited = node, inherited
        self._folder = os.path.abspath(node.record.spec.working_dir or ".")
        self._server: Server | None = None
        self._ranks: list[Child] = []
        self._asked: tuple[int, bool] | None = None  # the attempt, and whether its ranks start cold

    def begin(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, unless it lives, or there is no memory for it.

        Args:
            environment: of the ranks; by default as it will be if no worker comes or goes.
        """
        if self._is_cold():
            self.end()
            return
        try:
            environment = environment or {**os.environ, **self._node.environment()}
            if not self._suits(self._server, environment):
                self._drop()
                self._server = self._inherited if self._suits(self._inherited, environment) else None
                self._server = self._server or self._started(environment)
        except (OSError, ElasticError) as error:
            log.info("each rank imports torch itself: %s", error)
        if self._server is not None:
            take_orphans()  # ranks, when the process that has forked them ends

    def _is_cold(self) -> bool:
        """Whether a failure has decided that ranks are not forked. It also ends the attempt, so one look is enough."""
        attempt = self._node.attempt
        if self._asked is None or self._asked[0] != attempt:
            try:
                cold = read_cold_start(self._node.store) is not None
            except StoreError as error:
                log.warning("it cannot be read whether ranks must start cold, so they are forked: %s", error)
                return False
            self._asked = (attempt, cold)
        return self._asked[1]

    def blamed(self, errors: Sequence[RankError], forked: Mapping[int, float]) -> tuple[RankError, ...]:
        """Find the failures that a fork may have caused. After one, the ranks of this run start in new processes.

        Args:
            errors: how ranks have failed.
            forked: the ranks of this generation that are forks, and when they began, on the monotonic clock.

        Returns:
            The errors, with these first, and marked.
        """
        prefix = self._node.rank_files
        of_fork = [
            error
            for error in errors
            if error.rank is not None
            and error.rank in forked
            and may_be_of_fork(error, Path(f"{prefix}-rank-{error.rank}.page"), forked[error.rank])
        ]
        if not of_fork:
            return tuple(errors)
        log.warning(
            "rank %s failed before its first step, perhaps because it was forked. From now on ranks of this run start "
            "in new processes, as with `launcher_options: {start: cold}`",
            of_fork[0].rank,
        )
        try:
            write_cold_start(self._node.store, ColdStart(time.time(), self._node.attempt, of_fork[0].rank))
        except StoreError as error:
            log.warning("this cannot be stored: %s", error)
        others = [error for error in errors if error not in of_fork]
        return (*(replace(error, of_fork=True) for error in of_fork), *others)

    def _suits(self, server: Server | None, environment: Mapping[str, str]) -> bool:
        return (
            server is not None
            and server.process.poll() is None
            and server.early == read_early(environment, self._folder)
            # The memory that shows an environment to others has a size of its own in each process.
            and (server is not self._inherited or fits(environment))
        )

    def _started(self, environment: Mapping[str, str]) -> Server | None:
        free = free_bytes()
        if free is not None and free < KEEP_BYTES + EACH_BYTES * self._node.neighbours:
            log.info("only %.3g GB of memory are free: each rank imports torch itself", free / 1e9)
            return None
        if not (command := server_command(self._node.record)):
            return None
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                cwd=self._folder,
                env=with_room(environment, _ROOM_BYTES),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return Server(process, ours, read_early(environment, self._folder))

    def look(self) -> None:
        """Reap what ranks have left, and start another server if it has died.

        The kernel may have killed it for memory, which is no sign against a rank.
        """
        self._ranks = [rank for rank in self._ranks if not rank.reap()]
        if self._server is not None and self._server.process.poll() is not None:
            self._node.count_kills()
            self.begin()

    def fork(self, command: Sequence[str], environment: dict[str, str], output: Path) -> Child | None:
        """Start a rank. Waits until the server has imported torch.

        Args:
            command: command of the rank.
            environment: complete environment of the rank.
            output: file for its output.

        Returns:
            The rank; None if there is no server, or it could not import or fork.
        """
        if self._is_cold():
            self.end()
        elif self._server is not None and self._server.early != read_early(environment, self._folder):
            self.begin(environment)
        order = {"command": command, "environment": environment, "output": str(output), "folder": os.getcwd()}
        server = self._server
        if server is None or server.process.poll() is not None:
            return None
        try:
            if not self._imported(server):
                return None
            server.socket.sendall(json.dumps(order).encode() + b"\n")
            pid = self._answer(server, FORK_SECONDS)
        except OSError as error:
            pid = str(error)
        if not pid.isdigit():
            log.warning("the fork server did not fork (%s): ranks import torch themselves", pid or "it ended")
            server.end()  # `look` starts another one
            return None
        if pid == "0":
            return None
        rank = Child(int(pid))
        if not rank.belongs():
            log.warning("process %s was not a child of its agent, and has been killed", pid)
            return None
        self._ranks.append(rank)
        return rank

    def _imported(self, server: Server) -> bool:
        """Wait until the server has imported torch. Returns False if it could not."""
        if not server.ready:
            began = time.monotonic()
            answer = self._answer(server)
            server.ready = answer == "ready"
            if server.ready:
                log.info("the fork server is ready, after a wait of %.1f s", time.monotonic() - began)
            else:
                log.info("each rank imports torch itself: the fork server %s", answer or "ended")
                self.end()
        return server.ready

    def _answer(self, server: Server, seconds: float = float("inf")) -> str:
        """The next line of the server; "" if it has ended, or is too late, or the worker has to stop."""
        said, until = b"", time.monotonic() + seconds
        while not said.endswith(b"\n"):
            while not readable(server.socket.fileno(), _LOOK_SECONDS):
                if self._node.stop_at is not None or time.monotonic() > until:
                    return ""
            if not (byte := server.socket.recv(64)):
                return ""
            said += byte
        return said.decode().strip()

    def _drop(self) -> None:
        """End the one that this agent has started."""
        server, self._server = self._server, None
        if server is not None and server is not self._inherited:
            server.end()

    def end(self) -> None:
        """End it. Its ranks go on."""
        self._drop()
        inherited, self._inherited = self._inherited, None
        if inherited is not None:
            inherited.end()
