"""Event files of TensorBoard, written by torch's own writer: one folder for each attempt, below the run URI.

In a folder they are written in place. A service gets a copy at most once a minute. No file becomes large, because it is
sent again as a whole.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.core.event_sentences import tensorboard_command
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

log = logging.getLogger(__name__)

#: A file of this size is complete, and another one begins. Bytes.
FILE_BYTES = 4 << 20

#: Between two copies to a service. Seconds.
COPY_SECONDS = 60.0

#: The shortest time between two points, as a share of the time since the first one. In the first half hour each report
#: is a point; in 90 days there are some 20,000.
_SHARE = 1 / 2000

#: So many points wait for the thread that writes them. Older ones are dropped.
_MOST_WAITING = 10_000

#: Series that are numbers of something, which have no meaning as a curve.
_LEFT_OUT = frozenset({"attempt", "generation", "slowest_rank", "step"})


class EventFiles:
    """Takes values from one thread, and writes them in another.

    Args:
        store: where the run is stored.
        clock: returns seconds, monotonic.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._waiting: deque[tuple[int, float, dict[str, float]]] = deque(maxlen=_MOST_WAITING)
        self._first: float | None = None
        self._last = float("-inf")
        self._writer: Any = None
        self._attempt = 0
        self._copies: tempfile.TemporaryDirectory[str] | None = None
        self._sent: dict[Path, int] = {}
        self._copied_at = float("-inf")
        self._missing = False

    def add(self, attempt: int, at: float, values: Mapping[str, float]) -> bool:
        """Take the values of a report (epoch seconds). Does not wait. Returns whether they become points.

        Values without a step belong nowhere, and there are not more points than a chart needs.
        """
        if self._missing or "step" not in values:
            return False
        self._first = at if self._first is None else self._first
        if at - self._last < (at - self._first) * _SHARE:
            return False
        self._last = at
        self._waiting.append((attempt, at, dict(values)))
        return True

    def tend(self, *, last: bool = False) -> None:
        """Write what was added, and copy it to the service if it is time to, or if this is the last call.

        Raises:
            StoreError: the service does not answer; the next call tries again.
        """
        while self._waiting and not self._missing:
            self._write(*self._waiting.popleft())
        if self._writer is None:
            return
        self._writer.flush()
        self._rotate()
        if self._copies is not None and (last or self._clock() - self._copied_at >= COPY_SECONDS):
            self._copied_at = self._clock()
            self._copy()
        if last:
            self._writer.close()
            if self._copies is not None:
                self._copies.cleanup()

    def _write(self, attempt: int, at: float, values: Mapping[str, float]) -> None:
        if self._writer is None or self._attempt != attempt:
            self._begin(attempt)
        if self._writer is not None:
            for name, value in values.items():
                if name not in _LEFT_OUT:
                    tag = name.replace("metrics.", "metrics/", 1)
                    self._writer.add_scalar(tag, value, int(values["step"]), walltime=at)

    def _begin(self, attempt: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._missing = True
            log.warning(
                "tensorboard is set, but TensorBoard is not installed where this worker runs: %s",
                how_to_install("tensorboard"),
            )
            return
        if self._writer is not None:
            self._writer.close()
        self._attempt = attempt
        folder = self._folder(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(folder))
        log.info("event files of TensorBoard; to watch them: %s", tensorboard_command(self._store.uri))

    def _folder(self, attempt: int) -> Path:
        key = layout.event_files(attempt).rstrip("/")
        local = self._store.local_path(key)
        if local is not None:
            return local
        if self._copies is None:
            self._copies = tempfile.TemporaryDirectory(prefix="airflow-elastic-", ignore_cleanup_errors=True)
        return Path(self._copies.name, key)

    def _rotate(self) -> None:
        """Go over to a new file if the newest one is large enough."""
        newest = max(
            self._files(self._folder(self._attempt)), key=lambda path: path.stat().st_mtime, default=None
        )
        if newest is not None and newest.stat().st_size >= FILE_BYTES:
            self._writer.close()  # the next point opens another file

    def _copy(self) -> None:
        """Copy what has grown since, and remove complete copies of this machine."""
        root = Path(self._copies.name) if self._copies is not None else None
        for path in [] if root is None else self._files(root):
            size = path.stat().st_size
            if size != self._sent.get(path):
                self._store.upload(path.relative_to(root).as_posix(), path)  # type: ignore[arg-type]
                self._sent[path] = size
            elif size >= FILE_BYTES:
                path.unlink()

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        return sorted(path for path in folder.rglob("*") if path.is_file())
