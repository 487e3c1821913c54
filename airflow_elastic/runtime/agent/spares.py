"""Processes that have imported torch before they are wanted, and become ranks when they are told who to be.

Most of what a restart costs a script is Python importing torch, and what torch imports with its first optimizer. A
worker with a spare for each of its ranks has that behind it: its next ranks begin where the script does.

A spare is an ordinary child of the agent, and no fork of something that has threads. It ends when the agent does, as
it reads the end of its standard input then. It gives way: it is not begun where memory is scarce, and ended where it
becomes so. Nothing depends on it: a rank without a spare is started afresh.
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

#: What stays free for the ranks, whatever spares take; and what each of these takes beside the libraries it shares.
KEEP_BYTES, EACH_BYTES = 1 << 30, 1 << 29

#: What a spare is called once it has imported what it is to.
WAITING = "spare"

_GONE_SECONDS = 1.0

_THREADS = "OMP_NUM_THREADS"

#: How likely the kernel takes a process where memory runs out. Nobody needs rights to go back to what it was.
_SCORE = Path("/proc/self/oom_score_adj")


class Spares:
    """The spares of one worker. Nothing here raises an error: whatever is wrong, ranks will meet it, and tell.

    Args:
        node: the worker, before its process goes to the run's working folder.
    """

    def __init__(self, node: Worker) -> None:
        self._node, self._waiting = node, list[subprocess.Popen[bytes]]()
        self._folder = os.path.abspath(node.record.spec.working_dir or ".")
        self._given_way = False

    def begin(self) -> None:
        """Have one for each rank, where there is memory for that, unless they have been begun or had to give way."""
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
        """End them where memory has become scarce, and leave those that are dead."""
        alive = [spare for spare in self._waiting if spare.poll() is None]
        if len(alive) < len(self._waiting):
            self._node.count_kills()  # the kernel may have killed it for memory, and not a rank
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
        """Have one become a rank; None where there is none.

        Args:
            command: of the rank.
            environment: all of the rank's.
            output: the file that gets what it prints.
        """
        order = {"command": command, "environment": environment, "output": str(output)}
        while self._waiting:
            spare = self._waiting.pop()
            if _told(spare, json.dumps(order).encode() + b"\n"):
                return spare
        return None

    def end(self) -> None:
        """End those that wait."""
        for spare in self._waiting:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(spare.pid, signal.SIGKILL)
        for spare in self._waiting:
            if spare.stdin is not None:
                spare.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                spare.wait(_GONE_SECONDS)
        self._waiting = []


def _told(spare: subprocess.Popen[bytes], order: bytes) -> bool:
    """Whether it lives, and has been told."""
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
    """Be a spare: import ahead, and wait to be told who to be; returns the arguments of `start_rank.py`.

    Where what was imported is of no use to the rank, it starts afresh instead, and this does not return.
    """
    threads, score = os.environ.get(_THREADS), _first_to_die()
    told = _Orders()
    imported = _imported()
    be_called(WAITING)
    command = told.wait()
    _set_score(score)
    if not imported or os.environ.get(_THREADS) != threads:  # which libraries read when they are imported
        os.execve(command[0], command, os.environ)  # noqa: S606 - ourselves
    return command[command.index("--") :]


class _Orders:
    """Who to be. What it prints goes where a rank's output does from the moment it is told, imported or not."""

    def __init__(self) -> None:
        self._said = os.memfd_create("said")
        _print_to(self._said)
        self._order: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> list[str]:
        """Wait for it; the rank's command. Its environment is this process's then."""
        self._thread.join()
        os.environ.clear()
        os.environ.update(self._order["environment"])
        command: list[str] = self._order["command"]
        return command

    def _read(self) -> None:
        told = sys.stdin.buffer.readline()
        if not told.endswith(b"\n"):  # whoever would have told is gone
            os._exit(0)
        self._order = json.loads(told)
        with open(self._said, "rb") as said, open(self._order["output"], "wb") as output:
            said.seek(0)
            shutil.copyfileobj(said, output)
            output.flush()
            _print_to(output.fileno())
        with open(os.devnull, "r+b", buffering=0) as nothing:  # as a rank that is started afresh has it
            os.dup2(nothing.fileno(), 0)


def _print_to(descriptor: int) -> None:
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def _imported() -> bool:
    gc.disable()  # it would look through what is imported again and again: a sixth of the time
    try:
        import torch

        # Most of what scripts want of torch comes with it.
        importlib.import_module("airflow_elastic.runtime.session.session")
        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # with its first optimizer torch imports as much again
    except Exception:
        return False
    finally:
        gc.enable()
    return True


def _first_to_die() -> str | None:
    """Where memory runs out, nothing of value is lost with a spare; returns what was before."""
    with contextlib.suppress(OSError):
        before = _SCORE.read_text()
        _set_score("1000")
        return before
    return None


def _set_score(score: str | None) -> None:
    if score is not None:
        with contextlib.suppress(OSError):
            _SCORE.write_text(score)
