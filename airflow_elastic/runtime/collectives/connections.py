"""The TCP connections of this rank's process groups, so that another thread can cut them.

A rank that leaves gloo's collectives must close its connections. Only then do its peers notice. Only then does a
collective end that blocks this rank. `destroy_process_group` does not close them while anything refers to the group,
which DDP does; and gloo has no abort.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

#: Descriptors, with the sockets that they had.
_OPENED: dict[int, str] = {}


#: `sys.excepthook` as torch has set it, and as it was before. Torch's writes the rank before each line of a traceback.
_HOOKS: list[tuple[object, Any]] = []


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Around the making of process groups: note the connections that are opened meanwhile, and torch's hook."""
    before, hook = _sockets(), sys.excepthook
    try:
        yield
    finally:
        if sys.excepthook is not hook:
            _HOOKS.append((sys.excepthook, hook))
        _OPENED.update({number: one for number, one in _sockets().items() if before.get(number) != one})


def cut() -> None:
    """Break all collectives of this rank, also those that its main thread is blocked in, and those of its peers."""
    for group in [*dist.distributed_c10d._world.pg_map]:
        with contextlib.suppress(Exception):  # NCCL: ends its kernels; gloo: does nothing
            group.abort()
    _cut_sockets()


def forget_groups() -> None:
    """Leave all process groups, so that new ones can be made. Nothing may wait for a peer here."""
    _cut_sockets()
    _OPENED.clear()
    while _HOOKS:  # else each generation adds one to those before
        theirs, former = _HOOKS.pop()
        if sys.excepthook is theirs:
            sys.excepthook = former
    if dist.is_initialized():
        dist.distributed_c10d._abort_process_group()


def _cut_sockets() -> None:
    there = _sockets()
    for number, name in _OPENED.items():
        if there.get(number) == name:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
                # A listener must live: gloo ends the process when it cannot accept.
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.shutdown(socket.SHUT_RDWR)


def _sockets() -> dict[int, str]:
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (name := os.readlink(f"/proc/self/fd/{entry}")).startswith("socket:"):
                found[int(entry)] = name
    return found
