"""Files that exist in full or not at all, also after a crash of the process or a loss of power."""

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

# Some FUSE and SMB mounts cannot do it. A parent folder may allow passage but not reading.
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

    Raises NotADirectoryError if a file is in the way. Raises FileNotFoundError if somebody has removed a parent
    meanwhile (try again), or if `within`, which is never made, does not exist.
    """
    try:
        folder.mkdir()
    except FileNotFoundError:
        if folder.parent == within:
            raise
        make_folder(folder.parent, within)
        with contextlib.suppress(FileExistsError):  # another writer was faster
            folder.mkdir()
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(folder).st_mode):  # one look, because it may come and go between two
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        return
    fsync_folder(folder.parent)


@contextlib.contextmanager
def temp_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in `folder` that no listing shows; removed at the end, unless it was renamed.

    It is locked while it is open. The kernel releases the lock when the writer dies, so `is_abandoned` can distinguish
    a dead writer from a slow one.
    """
    temp = folder / f"{RESERVED}{os.getpid()}-{secrets.token_hex(8)}"
    with open(temp, "xb") as file:  # not mkstemp: its mode of 0600 would hide objects from other users
        try:
            with contextlib.suppress(OSError):  # without locks only its age counts
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield temp, file
        finally:
            with contextlib.suppress(OSError):  # usually renamed; otherwise `FolderStore.sweep` removes it
                temp.unlink()


def write(file: BinaryIO, data: memoryview, pace: Pace) -> None:
    """Write data that may be large; the disk starts with the first part while the rest is copied."""
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
    """Whether nobody writes `temp`, and nobody has since that time (seconds, on the file system's clock)."""
    try:
        if temp.stat().st_mtime >= modified_before:
            return False
        with open(temp, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError, BlockingIOError):
        return False  # gone, not accessible, or locked by its writer
    except OSError as exc:
        return exc.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # without locks its age decides
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove files that dead writers left half-written in a folder; not in the folders below it."""
    with contextlib.suppress(OSError):  # a failure only wastes space
        for temp in folder.glob(f"{RESERVED}*"):
            if is_abandoned(temp, math.inf):
                temp.unlink(missing_ok=True)
