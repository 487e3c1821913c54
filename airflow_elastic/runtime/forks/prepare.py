"""What a process does once before ranks are forked from it: it imports what all of them need.

Nothing of the user is imported, and no device is touched.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Devices of GPUs and other accelerators.
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel")


def prepare(*modules: str, ranks: bool = True) -> str | None:
    """Import what is needed before this process is forked. Raises what the import of `modules` raises.

    Args:
        modules: further modules.
        ranks: whether ranks will be forked from it, and not only other processes.

    Returns:
        Why no rank may be forked from it; None if it may.
    """
    environment = {**os.environ}
    gc.disable()  # during imports it takes a sixth of the time, and finds nothing to free
    try:
        for module in modules:
            importlib.import_module(module)
        why = (_for_ranks() or _unfit()) if ranks else "is not for ranks"
    finally:
        gc.enable()
    os.environ.clear()  # torch's compiler has set variables, which a rank must not find
    os.environ.update(environment)
    gc.collect()
    if not gc.get_freeze_count():
        # At its end Python frees unused objects, and libraries complain of frozen ones.
        atexit.register(gc.unfreeze)
    gc.freeze()  # so that a collection in a fork does not copy the pages that it shares
    return why


def _for_ranks() -> str | None:
    try:
        import torch

        # It imports most of the torch modules that scripts use.
        importlib.import_module("airflow_elastic.runtime.session.session")
        torch.optim.SGD([torch.zeros(1)], lr=0.1)  # with its first optimizer, torch imports as much again
    except Exception as error:
        return f"could not import: {type(error).__name__}"
    return None


@contextlib.contextmanager
def printed() -> Iterator[int]:
    """Keep what this process prints, and print it afterwards. Yields the descriptor of a file that has it.

    What imports print belongs into each rank's log, as if the rank had imported.
    """
    said = os.memfd_create("said")
    before = [os.dup(stream) for stream in (1, 2)]
    print_to(said)
    try:
        yield said
    finally:
        for stream, descriptor in zip((1, 2), before, strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.write(2, os.pread(said, os.fstat(said).st_size, 0))


def print_to(descriptor: int) -> None:
    """Print into a file from now on."""
    for stream in (1, 2):
        os.dup2(descriptor, stream)


def seed() -> None:
    """Draw the random numbers again that modules draw when they are imported, and forget the former TMPDIR.

    Python's own `random` does that itself after a fork.
    """
    sys.modules["torch"].default_generator.seed()
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)
    tempfile.tempdir = None


def _unfit() -> str | None:
    """Why no rank may be forked from this process; None if it may.

    A site's `sitecustomize`, or a plugin of torch, may have started a thread or opened a device. A fork has no copy of
    other threads, and cannot use a device of its parent's.
    """
    # OpenBLAS ends its threads before the fork, and starts them again only when they are needed.
    if (child := os.fork()) == 0:
        os._exit(0)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        return f"cannot be forked: a fork of it ended with {code}"
    if (others := len(os.listdir("/proc/self/task")) - 1) > 0:
        return f"has {others} other threads"
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if (opened := os.readlink(descriptor)).startswith(_DEVICES):
                return f"has opened {opened}"
    return None
