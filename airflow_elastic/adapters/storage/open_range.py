"""An open file, read from a given byte on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class OpenRange:
    """The bytes of an open file, one after the other.

    Args:
        descriptor: of the file.
        start: the first byte.
        size: how many bytes at most.
    """

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        self._descriptor, self._at, self._end = descriptor, start, start + size

    def readinto(self, room: memoryview) -> int:
        """Fill `room` with the next bytes; returns how many, 0 at the end."""
        count = os.preadv(self._descriptor, [room[: self._end - self._at]], self._at)
        self._at += count
        return count

    def skip(self, size: int) -> None:
        """Skip the next bytes."""
        self._at = min(self._at + size, self._end)


@contextmanager
def open_file(path: Path, start: int, size: int) -> Iterator[OpenRange]:
    """Open a file to read a large part of it, in order. Raises OSError."""
    with path.open("rb", buffering=0) as file:
        # The kernel then reads ahead twice as far: the disk goes on while the bytes are processed.
        with suppress(OSError, AttributeError):  # file systems that ignore advice; macOS
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield OpenRange(file.fileno(), start, size)
