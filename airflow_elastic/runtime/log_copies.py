"""A thread of each agent that copies what its ranks print to the run's storage, where they do not write into it.

Apart from reporting: a script that prints a gigabyte delays its log, and no word that something is decided by. Objects
do not grow, so a log goes there in parts, of which only the newest is sent again.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.runtime.node import Node

log = logging.getLogger(__name__)

PART_BYTES = 32 << 20

#: How often is looked for news; and what share of the time may go into sending a part again and again.
_LOOK_SECONDS, _SHARE = 3.0, 0.1

#: How long a worker that ends waits for its logs: its pod goes then.
STOP_SECONDS = 30.0


class LogCopies:
    """Copies the logs of all attempts that the worker has ranks in, as they grow.

    Args:
        node: the worker.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._far = node, node.store.local_path(layout.STATUS) is None
        self._folders: dict[int, Path] = {}
        self._sent: dict[Path, int] = {}
        self._next: dict[Path, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._far:
            self._thread.start()

    def note(self) -> None:
        """Have this attempt's logs known, before the worker goes over to the next one. Waits for nothing."""
        if self._far:
            self._folders[self._node.attempt] = self._node.logs

    def stop(self) -> None:
        """Copy the rest, and end."""
        self.note()
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
            if self._thread.is_alive():
                log.warning("the ends of the ranks' logs could not be copied within %.0f s", STOP_SECONDS)

    def _work(self) -> None:
        last = False
        while not last:
            last = self._over.wait(_LOOK_SECONDS)
            self.note()
            for attempt, folder in sorted(self._folders.items()):
                for path in sorted(folder.glob("*.log")):
                    self._copy(attempt, path, last=last)

    def _copy(self, attempt: int, path: Path, *, last: bool) -> None:
        if not last and time.monotonic() < self._next.get(path, 0.0):
            return
        began, size, sent = time.monotonic(), path.stat().st_size, self._sent.get(path, 0)
        key = layout.attempt_logs(attempt) + path.name
        try:
            while sent < size:
                number = sent // PART_BYTES
                with path.open("rb") as file:
                    file.seek(number * PART_BYTES)
                    data = file.read(PART_BYTES)
                self._node.store.put(layout.log_part(key, number), data)
                self._sent[path] = sent = number * PART_BYTES + len(data)
        except (StoreError, OSError) as error:
            log.warning("%s could not be copied, trying again: %s", path.name, error)
        took = time.monotonic() - began
        self._next[path] = time.monotonic() + took * (1 / _SHARE - 1)
