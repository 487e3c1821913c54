"""The node host of a run: `start_rank.py --node-host STATE_FOLDER`.

It imports once what agents and ranks need. Then it forks itself to start the agent of each wanted worker that has not
been started. With each agent it forks that agent's fork server, so that ranks are forks, too. The wanted workers are in
files, so it may die at any time, and another takes over. A lock keeps it the only one. It ends by itself when no agent
has run for a while.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from airflow_elastic.adapters.host.environment import ROOM
from airflow_elastic.adapters.host.processes import Process, readable
from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.launchers.read_early import read_early
from airflow_elastic.runtime.agent.fork_server import server_command
from airflow_elastic.runtime.forks.prepare import prepare, printed
from airflow_elastic.runtime.forks.server import fork_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.runtime.forks.server import Server

IDLE_SECONDS = 60.0
_AGENT = "airflow_elastic.runtime.agent.agent"  # imports torch, which takes most of the time
_LOOK_SECONDS = 2.0  # a write to the pipe wakes it at once; this is for an engine that could not write


@dataclass(frozen=True, slots=True)
class _Imported:
    """What this process has done before it forks.

    Attributes:
        said: what its imports have printed; see `printed`.
        early: what they have read of its environment.
        unfit: why no rank may be forked from it; None if it may.
    """

    said: int
    early: Mapping[str, str]
    unfit: str | None


def host(state: Path) -> list[str]:
    """Be the host of the run with this state folder, unless there is one.

    Returns:
        In each rank, which is a fork of this process, the arguments of `start_rank.py`. The host itself ends here.
    """
    if importlib.util.find_spec("torch") is None:  # before the fork, so that the engine gets the message
        sys.exit("No module named 'torch'")
    os.environ.pop(ROOM, None)
    registered, ready = os.pipe()
    # The engine waits for the parent only. The parent ends when the child has registered.
    if os.fork():
        os.close(ready)
        os.read(registered, 1)
        os._exit(0)
    os.close(registered)
    lock = os.open(state / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit()
    pipe_path = state / "host.pipe"
    if not pipe_path.exists():
        os.mkfifo(pipe_path, 0o600)
    pipe = os.open(pipe_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    JobFiles(state).write("host.json", Process.of(os.getpid()))
    os.close(ready)

    imported = _import(state)
    children: dict[int, tuple[JobFiles, int]] = {}
    busy_at = time.monotonic()
    while children or time.monotonic() - busy_at < IDLE_SECONDS:
        for files, index in _wanted(state, set(children.values())):
            child = os.fork()
            if child == 0:
                os.close(lock)
                os.close(pipe)
                return _be_agent(files, index, imported)
            children[child] = (files, index)
        _reap(children)
        if children:
            busy_at = time.monotonic()
        if readable(pipe, _LOOK_SECONDS):
            os.read(pipe, 4096)
    sys.exit()


def _import(state: Path) -> _Imported:
    records = (JobFiles(path.parent).record for path in state.glob("*/job.json"))
    forks = any(server_command(record) for record in records if record)
    early = read_early(os.environ, os.getcwd())
    with printed() as said:
        unfit = prepare(_AGENT, ranks=forks)
    return _Imported(said, early, unfit)


def _wanted(state: Path, started: set[tuple[JobFiles, int]]) -> list[tuple[JobFiles, int]]:
    """Workers in the newest generation of each open job, and its standby workers, that have not been started."""
    busy = {(files.folder, index) for files, index in started}
    found = []
    for path in state.glob("*/job.json"):
        files = JobFiles(path.parent)
        members = None if files.closed else files.newest_members()
        for index in (*members.nodes, *files.standby().nodes) if members else ():
            if (files.folder, index) not in busy and files.agent(index) is None:
                found.append((files, index))
    return found


def _be_agent(files: JobFiles, index: int, imported: _Imported) -> list[str]:
    """Be an agent, and end with it. Returns only in ranks, as `fork_server` does: they are forks of its fork server."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Before the agent has threads, or has opened anything.
    server = _forked_server(files, index, imported)
    return server if isinstance(server, list) else _run_agent(files, index, server)


def _forked_server(files: JobFiles, index: int, imported: _Imported) -> Server | list[str] | None:
    """See `fork_server`; None if this worker's ranks are not forked, or must not be forked from this process."""
    record = files.record
    if imported.unfit or record is None or not server_command(record):
        return None
    # What the engine finds the worker's processes by.
    marks = {"AIRFLOW_ELASTIC_JOB": record.name, "AIRFLOW_ELASTIC_WORKER": f"node-{index}"}
    return fork_server(imported.said, imported.early, marks)


def _run_agent(files: JobFiles, index: int, server: Server | None) -> NoReturn:
    from airflow_elastic.runtime.agent.agent import run_agent

    code = 1
    try:
        run_agent(files, index, server)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(children: dict[int, tuple[JobFiles, int]]) -> None:
    while children:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        files, index = children.pop(pid, (None, 0))
        if files is not None:
            # An agent that died before it could register is registered as dead: a worker is started only once.
            files.create(f"node-{index}/agent.json", Process(pid, 0))
