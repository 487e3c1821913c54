"""The output of a pod's ranks, also on the pod's own standard output: for `kubectl logs`."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.runtime.agent.worker import Worker

_LOOK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 20

#: What the pod's own output is behind by, at most: a container's log keeps about as much.
_BEHIND_BYTES = 8 << 20


class StdoutCopy:
    """A thread that copies what this worker's ranks have written to standard output, until the block ends."""

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._copied: dict[Path, int] = {}
        self._before: list[Path] = []  # what was copied the last time
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
        # Once more of ranks whose place others have taken since: nobody has looked at their last words.
        logs = self._node.rank_logs()
        before, self._before = self._before, logs
        for path in dict.fromkeys((*before, *logs)):
            try:
                self._copy_one(path)
            except OSError:
                continue

    def _copy_one(self, path: Path) -> None:
        """Copy what is there by now, and not what is written meanwhile: the other ranks have their turn."""
        out, at = sys.stdout.buffer, self._copied.get(path, 0)
        with path.open("rb") as file:
            until = os.fstat(file.fileno()).st_size
            if until - at > _BEHIND_BYTES:
                file.seek(until - _BEHIND_BYTES // 8)
                file.readline(_CHUNK_BYTES)
                left = (file.tell() - at) / 1e6
                where = f"{self._node.record.run_uri}/logs"
                told = f"\nairflow-elastic: {left:,.0f} MB are left out here: all of it is in {where}\n"
                out.write(told.encode())
            else:
                file.seek(at)
            while file.tell() < until and (data := file.read(_CHUNK_BYTES)):
                out.write(data)
                self._copied[path] = file.tell()
        out.flush()
