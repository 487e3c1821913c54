"""Small files on this machine. No reader sees them half written, and a full disk keeps no part of them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A new hidden file with the data in the folder of `path`, for this user alone; removed at the end, unless renamed.

    For what lives as long as a job. Objects of a run's storage have `durable_files.temp_file`, which others can read.

    Raises:
        OSError: it could not be written, for example because the disk is full.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write the file, or replace it at once. Raises OSError; the former content stays then."""
    with written_beside(path, data) as temporary:
        temporary.replace(path)
