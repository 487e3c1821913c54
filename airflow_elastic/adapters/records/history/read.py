"""Reading what is stored of the history of a run."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_elastic.core.history.fold import fold
from airflow_elastic.spec import layout
from airflow_elastic.spec.history import History, HistoryUnreadable, Part, decode_part

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

log = logging.getLogger(__name__)

TRAINING, CONTROLLER = "training", "controller"

#: How often to read again if archives are replaced while they are read.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored of one source.

    Attributes:
        number: number of the newest archive, readable or not; 0 where there is none.
        archive: the newest archive that can be read; empty where there is none.
        recent: the parts of writers, by key.
        keys: the keys of all archives.
        newer: whether something is of a newer release: then this one must not fold.
    """

    number: int
    archive: Part
    recent: dict[str, Part]
    keys: tuple[str, ...] = ()
    newer: bool = False


@dataclass(slots=True)
class Known:
    """An archive that was read before: its key, its size in bytes, and what it says."""

    key: str = ""
    size: int = -1
    part: Part = field(default_factory=Part)


def read_history(store: Store, now: float | None = None) -> History:
    """The history of a run; empty where there is none. What cannot be read is left out.

    Args:
        store: where the run is stored.
        now: the time of reading, epoch seconds; default: this machine's clock.

    Raises:
        StoreError: storage is out of reach.
    """
    at = time.time() if now is None else now
    return History(at, _whole(read_source(store, TRAINING)), _whole(read_source(store, CONTROLLER)))


def _whole(stored: Stored) -> Part:
    return fold(stored.archive, list(stored.recent.values()))


def read_source(store: Store, source: str, known: Known | None = None) -> Stored:
    """What is stored of a source.

    Args:
        store: where the run is stored.
        source: `training` or `controller`.
        known: the archive that was read last, which is not read again, because archives do not change; the caller keeps
            it for the next call.

    Raises:
        StoreError: storage is out of reach.
    """
    for _ in range(_TRIES):
        sizes = {entry.key: entry.size for entry in store.list(f"{layout.HISTORY}{source}/")}
        archives = sorted(key for key in sizes if "/archive-" in key)
        recent = {key: store.get(key) for key in sizes if "/recent-" in key}
        found = _newest(store, {key: sizes[key] for key in archives}, known)
        if found is not None or not archives:
            break
    archive, newer = found or (Part(), False)
    parts: dict[str, Part] = {}
    for key, data in recent.items():
        try:
            if data is not None:
                parts[key] = decode_part(data)
        except HistoryUnreadable as error:
            log.warning("%s/%s is left out: %s", store.uri, key, error)
            newer = newer or error.newer
    return Stored(number_of(archives[-1]) if archives else 0, archive, parts, tuple(archives), newer)


def _newest(store: Store, archives: dict[str, int], known: Known | None) -> tuple[Part, bool] | None:
    """The newest archive that can be read, and whether a newer one is of a newer release. None: all are gone.

    `archives` has their sizes by key, oldest first.
    """
    newer, damaged = False, False
    for key, size in reversed(archives.items()):
        if known is not None and (known.key, known.size) == (key, size):
            return known.part, newer
        data = store.get(key)
        if data is None:  # replaced meanwhile: so there is a newer one
            return None
        try:
            part = decode_part(data)
            if known is not None:
                known.key, known.size, known.part = key, size, part
            return part, newer
        except HistoryUnreadable as error:
            log.warning("%s/%s is left out: %s", store.uri, key, error)
            newer, damaged = newer or error.newer, True
    return (Part(), newer) if damaged else None


def number_of(key: str) -> int:
    """The number of an archive with this key."""
    digits = key.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0
