"""Folders for large temporary files. Each is removed in the end, even if its process is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEW_SECONDS = 60.0  # a folder is locked right after it is made; this much time is allowed for that


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder among the machine's temporary ones that is removed at the end.

    It is locked meanwhile. The kernel releases the lock when this process dies. So this first removes the folders with
    the same prefix that killed processes have left.

    Raises:
        OSError: there is no room for one.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        _remove_if_left(left)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, _opened(Path(name)) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Path(name)


def _remove_if_left(folder: Path) -> None:
    """Unless it is in use, belongs to another user, or has just been removed."""
    with contextlib.suppress(OSError), _opened(folder) as descriptor:
        if time.time() - os.fstat(descriptor).st_mtime > _NEW_SECONDS:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
