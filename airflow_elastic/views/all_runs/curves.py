"""The small curves in the list of runs: the loss of each run, read behind the back for the rows that somebody sees."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records.history.read import TRAINING, read_source
from airflow_elastic.core.history.fold import fold, only
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.history import History
from airflow_elastic.views.history import LOSS, sparkline

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: A curve is read again after so many seconds; that of a run that has ended is not.
AGE = 120.0

#: The most curves to keep.
MOST = 5000

#: Reads at the same time. More would keep answers waiting for Python's own lock.
_AT_ONCE = 2


class Curves:
    """The curves that were read so far; may be used by many threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reading = threading.Lock()
        self._known: dict[str, tuple[float, object, list[float]]] = {}

    def drawn(
        self, rows: Iterable[Mapping[str, Any]], open_row: Callable[[Mapping[str, Any]], Store]
    ) -> list[dict[str, Any]]:
        """Rows of the list with their curves; those that are not read yet, or are old, are read afterwards.

        Args:
            rows: of the list.
            open_row: the store of a row's run.
        """
        now = self._clock()
        found, due = [], []
        for row in rows:
            at, ended, curve = self._known.get(row["uri"], (0.0, None, []))
            found.append({**row, "sparkline": curve})
            if not at or ended != row["ended_at"] or (row["ended_at"] is None and now - at > AGE):
                due.append(row)
        if due and self._reading.acquire(blocking=False):
            threading.Thread(
                target=self._read, args=(due, open_row), daemon=True, name="elastic-curves"
            ).start()
        return found

    def _read(self, rows: list[Mapping[str, Any]], open_row: Callable[[Mapping[str, Any]], Store]) -> None:
        try:
            if len(self._known) > MOST:
                self._known = {}
            with ThreadPoolExecutor(min(_AT_ONCE, len(rows)), "elastic-curves") as pool:
                for row, curve in zip(rows, pool.map(lambda row: _curve(open_row, row), rows), strict=True):
                    self._known[row["uri"]] = self._clock(), row["ended_at"], curve
        finally:
            self._reading.release()


def _curve(open_row: Callable[[Mapping[str, Any]], Store], row: Mapping[str, Any]) -> list[float]:
    try:
        stored = read_source(open_row(row), TRAINING)
        parts = [only(part, LOSS.__eq__) for part in (stored.archive, *stored.recent.values())]
        part = fold(parts[0], parts[1:])
        return sparkline(History(part.at, part))
    except (ElasticError, KeyError):  # out of reach, or not in the list any more
        return []
