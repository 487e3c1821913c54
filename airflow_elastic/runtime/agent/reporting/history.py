"""The lead agent's part of the run's history: it keeps the numbers of each report, and a thread writes them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history import TRAINING, HistoryWriter
from airflow_elastic.core.history.samples import has_moved, training_rows, training_values, usage_rows
from airflow_elastic.runtime.agent.reporting.event_files import EventFiles
from airflow_elastic.spec.errors import StoreError

if TYPE_CHECKING:
    from airflow_elastic.runtime.agent.worker import Worker
    from airflow_elastic.spec.status import Progress

log = logging.getLogger(__name__)

#: How often the thread checks whether something has to be written.
_LOOK_SECONDS = 1.0


class HistoryKeeper:
    """Keeps the history as long as this worker is the lead. The thread starts with the first report.

    Args:
        node: the worker.
    """

    def __init__(self, node: Worker) -> None:
        self._node = node
        self._writer: HistoryWriter | None = None
        self._former: list[HistoryWriter] = []  # of earlier attempts
        self._last: Progress | None = None
        self._measured: dict[str, float] = {}
        self._board = EventFiles(node.store) if node.record.spec.tensorboard else None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="history", daemon=True)

    def keep(self, progress: Progress) -> None:
        """Keep the numbers of a report of all workers. Does not wait for storage."""
        moved = has_moved(progress, self._last)
        used = [one for one in progress.usage if self._measured.get(one.worker) != one.at]
        if not self._node.is_lead or not (moved or used):
            return
        self._last = progress
        self._measured = {one.worker: one.at for one in progress.usage}
        writer = self._writer
        if writer is None or writer.attempt != progress.attempt:
            if writer is not None:
                self._former.append(writer)
            self._writer = writer = HistoryWriter(self._node.store, TRAINING, attempt=progress.attempt)
        values = training_values(progress) if moved else {}
        rows = {**(training_rows(progress) if moved else {}), **usage_rows(used)}
        writer.add(progress.at, values, rows)
        if self._board is not None:
            self._board.add(progress.attempt, progress.at, values)
        if not self._thread.is_alive() and not self._over.is_set():
            self._thread.start()

    def stop(self) -> None:
        """Write the rest and end. A storage that does not answer is not waited for."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _work(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._write()
        self._write(last=True)

    def _write(self, *, last: bool = False) -> None:
        try:
            while self._former:
                self._former[0].flush()
                del self._former[0]
            if self._writer is not None:
                self._writer.flush() if last else self._writer.tend()
            if self._board is not None:
                self._board.tend(last=last)
        except StoreError as error:  # the numbers stay in memory
            log.warning("the history could not be written, trying again: %s", error)
        except Exception:
            log.exception("the history could not be written, trying again")
