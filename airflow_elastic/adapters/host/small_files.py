"""Small files on this machine. No reader sees them half written, and a full disk keeps no part of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_beside(path: Path, data: bytes) -> Path:
    """Write the data to a new hidden file in the folder of `path`; the caller gives it its name, or removes it.

    Raises:
        OSError: it could not be written, for example because the disk is full. The file is removed.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def write_whole(path: Path, data: bytes) -> None:
    """Write the file, or replace it at once. Raises OSError; the former content stays then."""
    temporary = write_beside(path, data)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
