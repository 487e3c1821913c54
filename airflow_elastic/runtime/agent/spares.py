"""Spare processes: they import torch ahead of time, and become ranks when they get an order.

Most of a restart's time goes into importing torch, and the modules that torch imports with its first optimizer. A
worker with a spare for each rank has done that already: its next ranks begin with the script.

A spare is an ordinary child of the agent, not a fork of a process with threads. It ends with the agent, because its
standard input ends then. It is not started if memory is scarce, and is ended when memory becomes scarce. It is
optional: a rank without a spare starts in a new process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host.memory import free_bytes
from airflow_elastic.adapters.host.processes import be_called
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import ElasticError

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: Memory that must stay free for the ranks; and the memory of one spare, without the libraries that it shares.
KEEP_BYTES, EACH_BYTES = 1 << 30, 1 << 29

#: The process name of a spare that has done its imports.
WAITING = "spare"

_GONE_SECONDS = 1.0

_THREADS = "OMP_NUM_THREADS"

#: How likely the kernel kills a process when memory runs out. Restoring the former value needs no special rights.
_SCORE = Path("/proc/self/oom_score_adj")


class Spares:
    """The spares of one worker. Raises no errors: a rank will run into the same problem, and report it.

    Args:
        node: the worker. Its process must not have changed to the run's working folder yet.
    """

    def __init__(self, node: Worker) -> None:
        self._node, self._waiting = node, list[subprocess.Popen[bytes]]()
        self._folder = os.path.abspath(node.record.spec.working_dir or ".")
        self._given_way = False

    def begin(self) -> None:
        """Start one for each rank if there is memory for it. Not again, and not after memory became scarce."""
        procs, free = self._node.record.spec.workers.procs, free_bytes()
        need = KEEP_BYTES + procs * self._node.neighbours * EACH_BYTES
        if self._waiting or self._given_way or (free is not None and free < need):
            return
        try:
            for _ in range(procs if (command := self._command()) else 0):
                spare = subprocess.Popen(
                    command,
                    cwd=self._folder,
                    env={**os.environ, **self._node.environment()},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._waiting.append(spare)
        except (OSError, ElasticError) as error:
            log.info("ranks are started without spares: %s", error)

    def _command(self) -> list[str]:
        spec = self._node.record.spec
        launcher = find_launcher(spec.launcher)
        return launcher.spare(spec, self._node.record.python) if launcher.spare else []

    def look(self) -> None:
        """Drop spares that are dead, and end the others if memory has become scarce."""
        alive = [spare for spare in self._waiting if spare.poll() is None]
        if len(alive) < len(self._waiting):
            self._node.count_kills()  # the kernel may have killed a spare, which is no sign against a rank
        self._waiting, free = alive, free_bytes()
        if self._waiting and free is not None and free < KEEP_BYTES:
            log.info(
                "only %.3g GB of memory are free: the next ranks will import torch themselves", free / 1e9
            )
            self._given_way = True
            self.end()

    def become(
        self, command: Sequence[str], environment: dict[str, str], output: Path
    ) -> subprocess.Popen[bytes] | None:
        """Turn a spare into a rank. Returns None if there is no spare.

        Args:
            command: command of the rank.
            environment: complete environment of the rank.
            output: file for its output.
        """
        order = {"command": command, "environment": environment, "output": str(output)}
        while self._waiting:
            spare = self._waiting.pop()
            if _send_order(spare, json.dumps(order).encode() + b"\n"):
                return spare
        return None

    def end(self) -> None:
        """End all spares."""
        for spare in self._waiting:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(spare.pid, signal.SIGKILL)
        for spare in self._waiting:
            if spare.stdin is not None:
                spare.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                spare.wait(_GONE_SECONDS)
        self._waiting = []


def _send_order(spare: subprocess.Popen[bytes], order: bytes) -> bool:
    """Send a spare its order. Returns False if the spare is dead."""
    if spare.stdin is None:
        return False
    try:
        with spare.stdin as stdin:
            if spare.poll() is not None:
                return False
            stdin.write(order)
    except BrokenPipeError:
        spare.wait()
        return False
    return True


# -- in the spare ------------------------------------------------------------------------------------------------------


def stand_by() -> list[str]:
    """Run as a spare: import ahead, and wait for an order. Returns the arguments of `start_rank.py`.

    If the rank cannot use the imports, it starts as a new program instead, and this does not return.
    """
    threads, score = os.environ.get(_THREADS), _first_to_die()
    order = _Order()
    imported = _imported()
    be_called(WAITING)
    command = order.wait()
    _set_score(score)
    if not imported or os.environ.get(_THREADS) != threads:  # libraries read it when they are imported
        os.execve(command[0], command, os.environ)  # noqa: S606 - the rank's own command
    return command[command.index("--") :]


class _Order:
    """The order to become a rank, read by a thread. From then on the output goes to the rank's log, imported or not."""

    def __init__(self) -> None:
        self._said = os.memfd_create("said")
        _print_to(self._said)
        self._order: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> list[str]:
        """Wait for the order, take over the rank's environment, and return its command."""
        self._thread.join()
        os.environ.clear()
        os.environ.update(self._order["environment"])
        command: list[str] = self._order["command"]
        return command

    def _read(self) -> None:
        order = sys.stdin.buffer.readline()
        if not order.endswith(b"\n"):  # the agent is gone
            os._exit(0)
        self._order = json.loads(order)
        with open(self._said, "rb") as said, open(self._order["output"], "wb") as output:
            said.seek(0)
            shutil.copyfileobj(said, output)
            output.flush()
            _print_to(output.fileno())
        with open(os.devnull, "r+b", buffering=0) as nothing:  # as for a rank that starts without a spare
            os.dup2(nothing.fileno(), 0)


def _print_to(descriptor: int) -> None:
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def _imported() -> bool:
    """Import what ranks need. Returns whether that succeeded."""
    gc.disable()  # during imports it takes a sixth of the time, and finds nothing to free
    try:
        import torch

        # It imports most of the torch modules that scripts use.
        importlib.import_module("airflow_elastic.runtime.session.session")
        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # with its first optimizer, torch imports as much again
    except Exception:
        return False
    finally:
        gc.enable()
    return True


def _first_to_die() -> str | None:
    """Make the kernel kill this spare first when memory runs out. Returns the former score."""
    with contextlib.suppress(OSError):
        before = _SCORE.read_text()
        _set_score("1000")
        return before
    return None


def _set_score(score: str | None) -> None:
    if score is not None:
        with contextlib.suppress(OSError):
            _SCORE.write_text(score)
