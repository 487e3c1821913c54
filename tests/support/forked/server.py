"""What `zygote.py` does. It is no part of it, as its `__main__` becomes that of a script."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

MOST = 1 << 20

#: Libraries have read these when they were imported: with others a process starts afresh.
READ_EARLY = (
    "PYTHON",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "CUDA_",
    "TORCH_LOGS",
    "ELASTIC_TEST_DOOM",
)

STARTED = {**os.environ}

#: What a rank's `start_rank.py` hands on: the modules that were there before it, and the path that it was given.
IMAGE: list[Any] = []


def early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}


# -- to be another process ---------------------------------------------------------------------------------------


def _room() -> tuple[int, int]:
    """Where the kernel reads this process's environment: `/proc/self/environ` shows what lies there."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[47]), int(fields[48])


ROOM = _room()


def take(environment: dict[str, str], folder: str, outputs: tuple[int, ...]) -> None:
    """Have this environment, folder and these descriptors, and nothing of this process's former ones."""
    with contextlib.suppress(PermissionError):  # it has one
        os.setsid()
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, *outputs)):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 16)
    os.environ.clear()
    os.environ.update(environment)
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    begin, end = ROOM
    assert len(block) <= end - begin, "the environment is larger than what was kept for it"
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, block, len(block))


def fits(environment: dict[str, str]) -> bool:
    return sum(len(os.fsencode(f"{n}={v}")) + 1 for n, v in environment.items()) <= ROOM[1] - ROOM[0]


def end(main: Callable[[], Any]) -> None:
    """Run it, and end as Python does with what it has raised; but this process's own frames are never unwound."""
    code = 0
    try:
        main()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


# -- ranks -------------------------------------------------------------------------------------------------------


class Mould:
    """A child of an agent, from before that has threads: it forks the agent's ranks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                ours.close()
                _mould(theirs)
            finally:
                os._exit(0)
        theirs.close()
        self._way = ours
        from airflow_elastic.adapters.host.processes import take_orphans

        take_orphans()

    def rank(self, order: dict[str, Any]) -> int:
        self._way.send(json.dumps(order).encode())
        return int(self._way.recv(100))


def _mould(way: socket.socket) -> None:
    ctypes.memset(ROOM[0], 0, ROOM[1] - ROOM[0])  # it is no process of the run: it ends with its agent
    from airflow_elastic.runtime.rank.forked import fork_for_parent

    while data := way.recv(MOST):
        if (pid := fork_for_parent()) is not None:
            way.send(str(pid).encode())
            continue
        order = json.loads(data)
        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        take(order["environment"], order["folder"], (output, output))
        end(partial(_be_rank, order["command"]))


def _be_rank(command: list[str]) -> None:
    import torch

    from airflow_elastic.runtime.rank.forked import seed
    from airflow_elastic.runtime.rank.run import main

    atexit.register(gc.unfreeze)
    if (threads := int(os.environ.get("OMP_NUM_THREADS", "1"))) != torch.get_num_threads():
        torch.set_num_threads(threads)
    seed()
    main(command[command.index("--") :], *IMAGE)


def prepare(loaded: frozenset[str], path: list[str]) -> None:
    """Import what hosts, agents and ranks will."""
    IMAGE[:] = [loaded, path]
    gc.disable()
    import torch

    import airflow_elastic.runtime.agent.node_host
    import airflow_elastic.runtime.session.session  # noqa: F401
    from airflow_elastic.runtime.agent import agent, fork_server

    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    moulds: list[Mould] = []

    class Forked(fork_server.ForkServer):
        """Nothing has to wait for an import: the server is a fork, too."""

        def begin(self) -> None:
            if not moulds:
                super().begin()

        def fork(
            self, command: Any, environment: dict[str, str], output: Path
        ) -> fork_server.ForkedRank | None:
            if not (
                moulds and self._command() and early(environment) == early(STARTED) and fits(environment)
            ):
                return super().fork(command, environment, output)
            order = {"command": command, "environment": environment, "output": str(output)}
            return fork_server.ForkedRank(moulds[0].rank({**order, "folder": os.getcwd()}))

    run_agent = agent.run_agent

    def with_mould(*args: Any) -> None:
        moulds.append(Mould())
        run_agent(*args)

    agent.ForkServer, agent.run_agent = Forked, with_mould  # type: ignore[attr-defined, misc]
    gc.freeze()
    gc.enable()


# -- node hosts --------------------------------------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Fork a node host for each order; ends with whoever gives them."""
    way = socket.socket(fileno=descriptor)
    way.send(b"ready")
    from airflow_elastic.runtime.agent import node_host

    while True:
        data, descriptors, _, _ = socket.recv_fds(way, MOST, 1)
        if not data:
            os._exit(0)  # there is nothing to finish
        order = json.loads(data)
        if child := os.fork():
            os.close(descriptors[0])
            _, status = os.waitpid(child, 0)
            way.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        take(order["environment"], order["folder"], (descriptors[0], descriptors[0]))
        sys.argv = ["node_host", order["state"]]
        end(partial(node_host.main, Path(order["state"])))
