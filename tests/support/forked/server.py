"""What `zygote.py` does. It is no part of it, as its `__main__` becomes that of a script."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.host.environment import take
from airflow_elastic.runtime.forks.prepare import prepare

MOST = 1 << 20


def serve(descriptor: int) -> list[str]:
    """Fork a node host for each order; ends with whoever gives them. Returns in each host its arguments."""
    way = socket.socket(fileno=descriptor)
    why = prepare("airflow_elastic.runtime.agent.node_host", "airflow_elastic.runtime.agent.agent")
    assert why is None, why
    way.send(b"ready")
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
        _become(order, descriptors[0])
        return ["--node-host", order["state"]]


def _become(order: dict[str, Any], output: int) -> None:
    """Have this folder, environment and output, and nothing of this process's former ones."""
    import torch

    with contextlib.suppress(PermissionError):  # it has one
        os.setsid()
    os.chdir(order["folder"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, descriptor in enumerate((nothing, output, output)):
        os.dup2(descriptor, number)
    os.closerange(3, 1 << 16)
    environment = order["environment"]
    take(environment)
    # The first thread of a process, as OpenBLAS starts with more of them, makes libc catch a signal.
    thread = threading.Thread()
    thread.start()
    thread.join()
    # Others read it when they are imported, as this process did with one thread.
    # `torch.set_num_threads` would also start a pool of threads, which a fork lacks, and waits for at its end.
    for library in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        ctypes.CDLL(str(library)).omp_set_num_threads(int(environment["OMP_NUM_THREADS"]))
