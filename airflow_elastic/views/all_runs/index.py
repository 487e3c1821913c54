"""All runs that somebody may see, kept in memory: status documents are read in the background, not for each request.

The list is shown as it is known, and renewed behind the back of who asks; only the first one waits. A run that has
ended is read again once a minute, since somebody may carry it on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.control.runs import Run
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.views.all_runs.curves import Curves
from airflow_elastic.views.all_runs.run_list import row, unreadable

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: The list of runs is older than this: it is renewed. And older than this: who asks waits for that.
FRESH, STALE = 3.0, 30.0

#: The status of a run that has ended is read again after so many seconds.
ENDED_AGE = 60.0

#: Runs are looked for again after so many seconds.
PLACES_AGE = 10.0

#: Reads at the same time. More would keep answers waiting for Python's own lock.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A run in the list.

    Attributes:
        path: by which the routes know it.
        uri: where it is stored.
        more: further fields of its row, such as the ids of its task instance.
    """

    path: str
    uri: str
    more: Mapping[str, Any]


class Index:
    """The rows of many runs; may be used by many threads.

    Args:
        places: finds all runs, by whatever they are known.
        open_place: the store of one.
        clock: epoch seconds.
    """

    def __init__(
        self,
        places: Callable[[], list[Place]],
        open_place: Callable[[Place], Store],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._places, self._open, self._clock = places, open_place, clock
        self._renewing = threading.Lock()
        self._read: dict[str, tuple[float, dict[str, Any] | str]] = {}
        self._known: _Known | None = None
        self._curves = Curves(clock)

    def rows(self) -> tuple[float, list[dict[str, Any]]]:
        """When the runs were last read, in epoch seconds, and their rows.

        Raises:
            ElasticError: the runs cannot be listed, and were not for a while.
        """
        known, now = self._known, self._clock()
        if known is None or not 0 <= now - known.at <= STALE:
            with self._renewing:  # one renews, the others wait
                if self._known is known:
                    self._renew()
        elif now - known.at > FRESH and self._renewing.acquire(blocking=False):
            threading.Thread(target=self._behind, daemon=True, name="elastic-index").start()
        assert self._known is not None  # noqa: S101 - set above
        return self._known.at, self._known.rows

    def with_curves(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """These rows with their small curves, as far as these were read. Others are read behind the back."""
        known = self._known
        stores = {} if known is None else known.places
        return self._curves.drawn(rows, lambda row: self._open(stores[row["path"]]))

    def _behind(self) -> None:
        try:
            self._renew()
        except ElasticError:  # the storage is out of reach: who asks when the list is stale gets the error
            pass
        finally:
            self._renewing.release()

    def _renew(self) -> None:
        now, known = self._clock(), self._known
        if known is not None and 0 <= now - known.found_at <= PLACES_AGE:
            places, found_at = list(known.places.values()), known.found_at
        else:
            places, found_at = self._places(), now
        due = [place for place in places if self._is_due(place, now)]
        if len(due) > 1:
            with ThreadPoolExecutor(min(_AT_ONCE, len(due)), "elastic-index") as pool:
                found = list(pool.map(self._document, due))
        else:
            found = [self._document(place) for place in due]
        read = {place.uri: (now, value) for place, value in zip(due, found, strict=True)}
        self._read = {place.uri: read.get(place.uri) or self._read[place.uri] for place in places}
        rows = [self._row(place, now) for place in places]
        self._known = _Known(now, rows, {place.path: place for place in places}, found_at)

    def _is_due(self, place: Place, now: float) -> bool:
        at, value = self._read.get(place.uri, (0.0, ""))
        ended = isinstance(value, dict) and value.get("outcome")
        return not ended or now - at > ENDED_AGE

    def _document(self, place: Place) -> dict[str, Any] | str:
        """The status document that a controller last wrote, in one read; else from the journal; else why not."""
        try:
            store = self._open(place)
            document = _parsed(store.get(layout.STATUS))
            return document if document is not None else Run(store).status()
        except ElasticError as error:
            return str(error)

    def _row(self, place: Place, now: float) -> dict[str, Any]:
        _, value = self._read[place.uri]
        if isinstance(value, str):
            return unreadable(place.path, place.uri, value, **place.more)
        try:
            return row(place.path, place.uri, value, now, **place.more)
        except (
            LookupError,
            TypeError,
            AttributeError,
            ValueError,
        ) as error:  # damaged, or of another release
            return unreadable(place.path, place.uri, f"its status cannot be read: {error!r}", **place.more)


@dataclass(frozen=True, slots=True)
class _Known:
    """The list at one moment."""

    at: float
    rows: list[dict[str, Any]]
    places: dict[str, Place]
    found_at: float


def _parsed(data: bytes | None) -> dict[str, Any] | None:
    try:
        document = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("run"), dict) else None
