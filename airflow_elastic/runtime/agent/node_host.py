"""The node host of a run: `python -P -m airflow_elastic.runtime.agent.node_host STATE_FOLDER`.

It imports torch once. Then it forks itself to start the agent of each wanted worker that has not been started. The
wanted workers are in files, so it may die at any time, and another takes over. A lock keeps it the only one. It ends by
itself when no agent has run for a while.
"""

from __future__ import annotations

if __name__ == "__main__":  # before anything else is imported
    from airflow_elastic.adapters.host.search_path import own_first

    own_first()

import fcntl
import gc
import importlib.util
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from airflow_elastic.adapters.host.processes import Process, readable
from airflow_elastic.adapters.records.job_files import JobFiles

IDLE_SECONDS = 60.0
_LOOK_SECONDS = 2.0  # a write to the pipe wakes it at once; this is for an engine that could not write


def main(state: Path) -> None:
    """Run the host of the run with this state folder, unless there is one."""
    if importlib.util.find_spec("torch") is None:  # before the fork, so that the engine gets the message
        sys.exit("No module named 'torch'")
    registered, ready = os.pipe()
    # The engine waits for the parent only. The parent ends when the child has registered.
    if os.fork():
        os.close(ready)
        os.read(registered, 1)
        os._exit(0)
    lock = os.open(state / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    pipe_path = state / "host.pipe"
    if not pipe_path.exists():
        os.mkfifo(pipe_path, 0o600)
    pipe = os.open(pipe_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    JobFiles(state).write("host.json", Process.of(os.getpid()))
    os.close(ready)

    gc.disable()  # during imports it takes a sixth of the time, and finds nothing to free
    from airflow_elastic.runtime.agent.agent import run_agent  # imports torch, which takes most of the time

    gc.freeze()  # keeps the memory of the imports shared with every agent
    gc.enable()
    children: dict[int, tuple[JobFiles, int]] = {}
    busy_at = time.monotonic()
    while children or time.monotonic() - busy_at < IDLE_SECONDS:
        for files, index in _wanted(state, set(children.values())):
            child = os.fork()
            if child == 0:
                os.close(lock)
                os.close(pipe)
                _be_agent(run_agent, files, index)
            children[child] = (files, index)
        _reap(children)
        if children:
            busy_at = time.monotonic()
        if readable(pipe, _LOOK_SECONDS):
            os.read(pipe, 4096)


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


def _be_agent(run_agent: object, files: JobFiles, index: int) -> None:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if callable(run_agent):
            run_agent(files, index)
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
