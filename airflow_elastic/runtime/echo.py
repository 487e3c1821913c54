"""The output of a pod's ranks, also on the pod's own standard output: for `kubectl logs`."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.runtime.node import Node

_LOOK_SECONDS = 0.5
_CHUNK_BYTES = 1 << 20


class Echo:
    """A thread that copies what this worker's ranks have written to standard output, until the block ends."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._copied: dict[Path, int] = {}
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
        for path in self._node.rank_logs():
            try:
                with path.open("rb") as file:
                    file.seek(self._copied.get(path, 0))
                    while data := file.read(_CHUNK_BYTES):
                        sys.stdout.buffer.write(data)
                        self._copied[path] = file.tell()
                sys.stdout.buffer.flush()
            except OSError:
                continue
