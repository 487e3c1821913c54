"""A thread of each agent that copies its ranks' logs to the run's storage, if ranks cannot write there themselves.

It is not the thread that reports: a script that prints a gigabyte delays its log, but no report. Objects in storage
cannot grow, so a log is copied in parts, and only the newest part is sent again. When the worker has ended, the thread
tries until the whole log is copied, or its time is over. Then the last line of the copy says how much is missing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.job_files import LOG_SECONDS
from airflow_elastic.adapters.records.rank_output import size_in_words
from airflow_elastic.runtime.agent.worker import LOCALHOST
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

PART_BYTES = 32 << 20

_LOOK_SECONDS = 3.0  # between two checks for new output
_SHARE = 0.1  # of the time, at most, to send the newest part again, or to fail to
_FAILED_SECONDS = 30.0  # the shortest pause after a failure
_AGAIN_SECONDS = 1.0  # the same once the worker has ended
_NOTE_SECONDS = 5.0  # for the line that says how much is missing


class LogCopies:
    """Copies the logs of all attempts that the worker has ranks in, as they grow.

    Args:
        node: the worker.
    """

    def __init__(self, node: Worker) -> None:
        self._node, self._far = node, node.store.local_path(layout.STATUS) is None
        self._folders: dict[int, Path] = {}
        self._sent: dict[Path, int] = {}
        self._next: dict[Path, float] = {}  # when a part that is not full may be sent again
        self._failed: dict[Path, float] = {}  # when what could not be sent may be tried again
        self._over = threading.Event()
        self._ended_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)

    def start(self) -> None:
        """Start the thread, if logs must be copied."""
        if self._far:
            self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def note(self) -> None:
        """Note the folder of this attempt's logs, before the worker goes over to the next attempt. Does not wait."""
        with contextlib.suppress(OSError):  # without the folder there are no logs
            if self._far:
                self._folders[self._node.attempt] = self._node.logs

    def end(self) -> None:
        """Begin to copy the rest, because the ranks have ended. Does not wait."""
        self.note()
        self._ended_at = self._ended_at or time.monotonic()
        self._over.set()

    def stop(self) -> None:
        """Wait until the rest is copied, or its time is over."""
        self.end()
        if self.busy:
            self._thread.join(max(0.0, self._seconds_left()) + _NOTE_SECONDS)
        if self.busy:
            for _, path in self._logs():
                if missing := self._left(path, "storage does not answer"):
                    log.warning("%s: %s", path, missing)

    def _seconds_left(self) -> float:
        """Seconds left to copy the rest. A pod that must end is killed after its grace period: finish before that."""
        node, ends = self._node, (self._ended_at or time.monotonic()) + LOG_SECONDS
        if node.stop_at is not None and node.unattended is None and node.address != LOCALHOST:
            ends = min(ends, node.stop_at + node.record.spec.health.grace_seconds - _NOTE_SECONDS)
        return ends - time.monotonic()

    def _work(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.note()
            self._pass()
        while (left := self._pass(last=True)) and self._seconds_left() > 0:
            time.sleep(_AGAIN_SECONDS)
        for (attempt, path), why in left.items():
            self._say(attempt, path, why)

    def _logs(self) -> list[tuple[int, Path]]:
        folders = sorted(self._folders.items())
        return [(attempt, path) for attempt, folder in folders for path in sorted(folder.glob("*.log"))]

    def _pass(self, *, last: bool = False) -> dict[tuple[int, Path], str]:
        """Send new output. Returns the logs that could not be sent completely, and why."""
        found = {(attempt, path): self._copy(attempt, path, last=last) for attempt, path in self._logs()}
        return {log: why for log, why in found.items() if why is not None}

    def _copy(self, attempt: int, path: Path, *, last: bool) -> str | None:
        began = time.monotonic()
        if not last and began < self._failed.get(path, 0.0):
            return None
        try:
            size, sent = path.stat().st_size, self._sent.get(path, 0)
            while sent < size:
                number, began = sent // PART_BYTES, time.monotonic()
                full = size >= (number + 1) * PART_BYTES
                if not full and not last and began < self._next.get(path, 0.0):
                    return None
                with path.open("rb") as file:
                    file.seek(number * PART_BYTES)
                    data = file.read(PART_BYTES)
                self._node.store.put(_part(attempt, path, number), data)
                self._sent[path] = sent = number * PART_BYTES + len(data)
                if not full:
                    took = time.monotonic() - began
                    self._next[path] = began + took / _SHARE
                if last and sent < size and self._seconds_left() <= 0:
                    return "there was no more time"
        except Exception as error:  # after any error go on with the other logs, and try this one again later
            now = time.monotonic()
            self._failed[path] = now + max(_FAILED_SECONDS, (now - began) / _SHARE)
            log.warning("%s could not be copied, trying again: %s", path.name, error)
            return str(error)
        return None

    def _left(self, path: Path, why: str) -> str | None:
        """A sentence about the rest of a log that could not be copied. None if the log is complete."""
        try:
            left = path.stat().st_size - self._sent.get(path, 0)
        except OSError as error:
            return f"this log could not be read: {error}"
        return f"{size_in_words(left)} of this log could not be copied: {why}" if left > 0 else None

    def _say(self, attempt: int, path: Path, why: str) -> None:
        """Note the missing rest of a log, in the agent's log and, if possible, at the end of the copy."""
        if (missing := self._left(path, why)) is None:
            return
        log.warning("%s: %s", path, missing)
        number = -(-self._sent.get(path, 0) // PART_BYTES)
        try:
            self._node.store.put(_part(attempt, path, number), f"\n({missing})\n".encode())
        except Exception as error:
            log.warning("%s: this could not be noted at the end of the copy: %s", path, error)


def _part(attempt: int, path: Path, number: int) -> str:
    return layout.log_part(layout.attempt_logs(attempt) + path.name, number)
