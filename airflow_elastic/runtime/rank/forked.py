"""The process that is forked for each rank: `start_rank.py --fork-server DESCRIPTOR`, started by its worker's agent.

It imports what all ranks need. Then it reads orders from a socket, a line of JSON each: the rank's `command`,
`environment`, `output` (a file) and `folder`. It answers with the process id. Nothing of the user is imported here, and
no device is touched. When it forks, there is no other thread: OpenBLAS ends its own before a fork.

Python's `multiprocessing` has a fork server of the same kind, and Android's zygote is one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host.processes import be_called

#: The process name of a server that has done its imports.
WAITING = "fork-server"

_THREADS = "OMP_NUM_THREADS"

#: Devices of GPUs and other accelerators.
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")

#: How likely the kernel kills a process when memory runs out. Restoring the former value needs no special rights.
_SCORE = Path("/proc/self/oom_score_adj")


def serve(descriptor: int) -> list[str]:
    """Fork a rank for each order, until the agent ends. Returns in each rank, with the arguments of `start_rank.py`.

    Args:
        descriptor: of the socket.
    """
    agent = socket.socket(fileno=descriptor)
    said = _said()
    score = _first_to_die()
    if (why := _imported() or _unfit()) is not None:
        agent.sendall(f"{why}\n".encode())
        os._exit(1)
    be_called(WAITING)
    gc.collect()
    gc.freeze()  # so that a collection in a rank does not copy the pages that it shares
    threads = os.environ.get(_THREADS)
    agent.sendall(b"ready\n")
    orders = agent.makefile("rb")
    for line in orders:
        if (pid := fork_for_parent()) is not None:
            agent.sendall(f"{pid}\n".encode())
            continue
        orders.close()
        agent.close()
        command = _become(json.loads(line), said, score)
        if os.environ.get(_THREADS) != threads:  # numpy read it when it was imported
            os.execve(command[0], command, os.environ)  # noqa: S606 - the rank's own command
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
        if (child := _fork_or_none()) != 0:
            os._exit(child is None)
        os.setsid()
        os.write(write, str(os.getpid()).encode())
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
    # What the imports have printed is in each rank's log, as if the rank had imported.
    os.sendfile(output, said, 0, os.fstat(said).st_size)
    _print_to(output)
    os.close(output)
    os.close(said)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    _set_score(score)
    seed()
    # At its end Python frees unused objects, and libraries complain of frozen ones.
    atexit.register(gc.unfreeze)
    command: list[str] = order["command"]
    return command


def seed() -> None:
    """Draw again what a process draws when it imports a module. Python's own `random` does that itself after a fork."""
    sys.modules["torch"].default_generator.seed()
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)


def _said() -> int:
    """Print into memory from now on. Returns its descriptor."""
    said = os.memfd_create("said")
    _print_to(said)
    return said


def _print_to(descriptor: int) -> None:
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def _imported() -> str | None:
    """Import what ranks need. Returns why that failed; None if it did not."""
    gc.disable()  # during imports it takes a sixth of the time, and finds nothing to free
    try:
        import torch

        # It imports most of the torch modules that scripts use.
        importlib.import_module("airflow_elastic.runtime.session.session")
        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # with its first optimizer, torch imports as much again
    except Exception as error:
        return f"could not import: {type(error).__name__}"
    finally:
        gc.enable()
    return None


def _unfit() -> str | None:
    """Why no rank may be forked from this process; None if it may.

    A site's `sitecustomize`, or a plugin of torch, may have started a thread or opened a device. A fork has no copy of
    other threads, and cannot use a device of its parent's.
    """
    # OpenBLAS ends its threads before the fork, and starts them again only when they are needed.
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if (others := len(os.listdir("/proc/self/task")) - 1) > 0:
        return f"has {others} other threads"
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (opened := os.readlink(descriptor)).startswith(_DEVICES):
                return f"has opened {opened}"
    return None


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
