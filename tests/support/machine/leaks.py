"""What the dead leave behind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from airflow_elastic.adapters.storage.keys import RESERVED
from tests.support.s3 import S3Server

SHARED_MEMORY = Path("/dev/shm")


class SharedMemory:
    """Named shared memory, as it is when this is made: the product's has no names, so there is to be no more of it."""

    def __init__(self) -> None:
        self._before = set(_there())

    def leaks(self) -> list[str]:
        """What has come since and is nobody's: what a process has open is its own, whoever else uses this machine."""
        new = {number: name for number, name in _there().items() if number not in self._before}
        held = _held() if new else set()
        return sorted(name for number, name in new.items() if number not in held)


def _there() -> dict[int, str]:
    """Names of the files, by their inodes: semaphores are mapped under other names."""
    found = {}
    for entry in os.scandir(SHARED_MEMORY):
        with contextlib.suppress(FileNotFoundError):
            found[entry.stat(follow_symlinks=False).st_ino] = entry.name
    return found


def _held() -> set[int]:
    """Inodes of what processes have mapped or open there."""
    found, device = set(), SHARED_MEMORY.stat().st_dev
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                _, _, _, where, number, *_ = line.split()
                if where == f"{os.major(device):02x}:{os.minor(device):02x}":
                    found.add(int(number))
            for one in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if (about := one.stat()).st_dev == device:
                        found.add(about.st_ino)
    return found


def half_written(folder: Path) -> list[str]:
    """Files below a folder that somebody has begun and not finished."""
    return sorted(str(path) for path in folder.rglob(f"{RESERVED}*"))


def half_fetched(folder: Path) -> list[str]:
    """Folders below a worker's own in which ranks keep what they fetch for each other."""
    return sorted(str(path) for path in folder.rglob("restore-*"))


def half_uploaded(server: S3Server) -> list[str]:
    """Objects of which somebody has begun to send parts, and has not finished."""
    uploads = server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads", ())
    return [upload["Key"] for upload in uploads]
