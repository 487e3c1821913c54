"""A real file system that is full when a test says so."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.machine.patience import until


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Path]:
    """A file system of this size, mounted there. Skips the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Processes that have ended may take a moment to be gone; nobody may go on having a file of it open.
        until(lambda: _unmounted(folder), f"{folder} to be nobody's")


def fill_up(ballast: Path, left: int = 0) -> None:
    """Have this file take all room of its file system but for so many bytes."""
    with ballast.open("wb") as file:
        while True:
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, _free(ballast) - left))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                left += os.sysconf("SC_PAGESIZE")  # what is free is not counted to the last page
            else:
                return


def _unmounted(folder: Path) -> bool:
    return subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode == 0


def _free(path: Path) -> int:
    about = os.statvfs(path)
    return about.f_bavail * about.f_frsize
