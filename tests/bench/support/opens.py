"""How often files are opened, by whatever process, as the kernel reports it."""

from __future__ import annotations

import ctypes
import os
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

_OPENED, _NONBLOCKING = 0x20, os.O_NONBLOCK
_EVENT = struct.Struct("iIII")


class Opens:
    """Counts the opening of files below some folders while it is entered.

    A file that is replaced by renaming another one counts only for who reads it.

    Args:
        folders: those whose files count. Folders below them do not.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(folders)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = -1

    def __enter__(self) -> Opens:
        self._file = self._libc.inotify_init1(_NONBLOCKING)
        for folder in self._folders:
            if self._libc.inotify_add_watch(self._file, os.fsencode(folder), _OPENED) < 0:
                raise OSError(ctypes.get_errno(), "this file system does not report openings", str(folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def counted(self) -> Counter[str]:
        """The openings since the last call, by the name of the file."""
        found: Counter[str] = Counter()
        while True:
            try:
                data = os.read(self._file, 1 << 16)
            except BlockingIOError:
                return found
            place = 0
            while place < len(data):
                _, _, _, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size
                found[data[place : place + length].rstrip(b"\0").decode(errors="replace")] += 1
                place += length
