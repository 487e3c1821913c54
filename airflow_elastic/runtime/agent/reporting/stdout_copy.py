"""Copies the output of a pod's ranks to the pod's standard output, for `kubectl logs`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.runtime.agent.worker import Worker

_LOOK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 20

#: If the copy is more bytes behind than this, it skips most of them. A container's log keeps about as much.
_BEHIND_BYTES = 8 << 20


class StdoutCopy:
    """A thread that copies the logs of this worker's ranks to standard output, until the `with` block ends."""

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._copied: dict[Path, int] = {}
        self._before: list[Path] = []  # the logs of the last copy
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="echo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        # Also the logs of ranks that have been replaced since: their last lines are not copied yet.
        logs = self._node.rank_logs()
        before, self._before = self._before, logs
        for path in dict.fromkeys((*before, *logs)):
            try:
                self._copy_one(path)
            except OSError:
                continue

    def _copy_one(self, path: Path) -> None:
        """Copy what is in the file now. Lines that are written meanwhile wait, so that each rank gets its turn."""
        at = self._copied.get(path, 0)
        # `sys.stdout` may have no buffer. Then a signal could cut a write off.
        with path.open("rb") as file, open(1, "wb", closefd=False) as out:
            until = os.fstat(file.fileno()).st_size
            if until - at > _BEHIND_BYTES:
                file.seek(until - _BEHIND_BYTES // 8)
                file.readline(_CHUNK_BYTES)
                left = (file.tell() - at) / 1e6
                where = f"{self._node.record.run_uri}/logs"
                note = f"{left:,.0f} MB are left out here; the complete log is in {where}"
                out.write(f"\nairflow-elastic: {note}\n".encode())
            else:
                file.seek(at)
            while file.tell() < until and (data := file.read(_CHUNK_BYTES)):
                out.write(data)
                self._copied[path] = file.tell()
