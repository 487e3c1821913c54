"""Files that are there whole or not at all, also after a crash of the process or a loss of power."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_elastic.adapters.host import processes
from airflow_elastic.adapters.storage.keys import RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.storage.store import Pace

_PIECE_BYTES = 32 << 20

# Some FUSE and SMB mounts cannot do it; a folder above ours may let us pass and not look.
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where its file system can do that at all."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as exc:
        if exc.errno not in _NO_FOLDER_SYNC:
            raise


def make_folder(folder: Path, within: Path | None = None) -> None:
    """Create `folder` and the parents it lacks, each made durable in its own parent.

    Raises NotADirectoryError where a file is in the way, and FileNotFoundError where somebody removed a
    parent meanwhile (try again), or where `within`, which is never made, is not there.
    """
    try:
        folder.mkdir()
    except FileNotFoundError:
        if folder.parent == within:
            raise
        make_folder(folder.parent, within)
        with contextlib.suppress(FileExistsError):  # another writer was quicker
            folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(folder).st_mode):  # one look: it may come and go between two
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        return
    fsync_folder(folder.parent)


@contextlib.contextmanager
def temp_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in `folder` that nobody lists; removed at the end, unless it was renamed away.

    It is locked while it is open: the kernel lets go of the lock when the writer dies, which tells
    `is_abandoned` a dead writer from a slow one.
    """
    temp = folder / f"{RESERVED}{os.getpid()}-{secrets.token_hex(8)}"
    with open(temp, "xb") as file:  # not mkstemp: its mode of 0600 would hide objects from other users
        try:
            with contextlib.suppress(OSError):  # no locks on this file system: only its age tells
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield temp, file
        finally:
            with contextlib.suppress(OSError):  # usually gone, by rename; else `FolderStore.sweep` gets it
                temp.unlink()


def write(file: BinaryIO, data: memoryview, pace: Pace) -> None:
    """Write what may be large, and have the disk begin with the first of it while the rest is copied."""
    for at in range(0, len(data), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]
        with pace(len(piece)):
            file.write(piece)
            file.flush()
            processes.write_back(file.fileno(), at, len(piece))


def sync(file: BinaryIO) -> None:
    """Make the content written to `file` durable."""
    file.flush()
    os.fsync(file.fileno())


def is_abandoned(temp: Path, modified_before: float) -> bool:
    """Whether nobody writes `temp` and nobody has since that time (seconds, on the file system's clock)."""
    try:
        if temp.stat().st_mtime >= modified_before:
            return False
        with open(temp, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError, BlockingIOError):
        return False  # gone, not ours to judge, or held by its writer
    except OSError as exc:
        return exc.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # no locks here: its age decides
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove what writers have left half-written in a folder when they died; not in those below it."""
    with contextlib.suppress(OSError):  # it only takes space
        for temp in folder.glob(f"{RESERVED}*"):
            if is_abandoned(temp, math.inf):
                temp.unlink(missing_ok=True)
