"""Writing the history of a run: a writer's own part, and now and then the next archive."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history.read import number_of, read_source
from airflow_elastic.core.history.fold import cut_of, fold, whole_minute
from airflow_elastic.core.history.recorder import Recorder
from airflow_elastic.spec import layout
from airflow_elastic.spec.history import HistoryUnreadable, Part, decode_part, encode_part

if TYPE_CHECKING:
    from airflow_elastic.adapters.records.history.read import Stored
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.history import Condition

log = logging.getLogger(__name__)

#: A part whose newest bucket is older than this belongs to a dead writer: others fold it. Seconds.
DEAD_SECONDS = 600.0

#: So many archives are kept: the one before the newest is read if that is damaged.
_KEPT_ARCHIVES = 2

#: How often to begin a fold again if other writers are faster.
_TRIES = 3


#: The most processor time for writes of its part, as a share; with many workers they are rarer therefore.
_SHARE, _LONGEST_SECONDS = 0.001, 75.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a writer writes. Seconds.

    Attributes:
        part: between two writes of its own part.
        quiet: the same while nothing has happened that a reader waits for.
        archive: between two folds.
    """

    part: float
    quiet: float
    archive: float


#: For a run in a folder.
NEAR = {"training": Pace(10.0, 10.0, 3600.0), "controller": Pace(10.0, 10.0, 3600.0)}
#: For a run on a service, where each write is paid: both writers together make less than one request a minute.
FAR = {"training": Pace(75.0, 75.0, 7200.0), "controller": Pace(75.0, 600.0, 4 * 3600.0)}


class HistoryWriter:
    """Adds to one source of a run's history. Adding is cheap and does not wait for storage.

    Args:
        store: where the run is stored.
        source: `training` or `controller`.
        attempt: the attempt whose numbers these are; 0 where there is none.
        pace: how often to write; default: by the kind of storage.
        now: returns epoch seconds.
    """

    def __init__(
        self,
        store: Store,
        source: str,
        *,
        attempt: int = 0,
        pace: Pace | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._source, self._now = store, source, now
        near = store.local_path(layout.STATUS) is not None
        self._pace = pace or (NEAR if near else FAR)[source]
        self._recorder = Recorder(uuid.uuid4().hex[:12], attempt)
        self._key = layout.history_recent(source, attempt, self._recorder.writer)
        self._lock = threading.Lock()  # of the recorder
        self._changed = self._news = False
        self._part_at = float("-inf")
        self._cost = 0.0  # processor seconds of the last write
        self._archive_at = float("-inf")

    @property
    def attempt(self) -> int:
        """The attempt whose numbers it writes."""
        return self._recorder.attempt

    def add(
        self,
        t: float,
        values: Mapping[str, float],
        rows: Mapping[str, Mapping[str, float]] | None = None,
        *,
        news: bool = False,
    ) -> None:
        """Add numbers at a time (epoch seconds).

        Args:
            t: the time.
            values: by the names of the series.
            rows: for each matrix a number of each worker or rank.
            news: whether readers wait for it.
        """
        with self._lock:
            self._recorder.add(t, values)
            for name, numbers in (rows or {}).items():
                self._recorder.add_rows(name, t, numbers)
            self._changed, self._news = True, self._news or news

    def note(self, *conditions: Condition, news: bool = True) -> None:
        """Note conditions, also ones that were noted before and last longer now."""
        with self._lock:
            self._recorder.note(*conditions)
            self._changed, self._news = True, self._news or news

    @property
    def due(self) -> bool:
        """Whether it is time to write something."""
        return self._part_due or (self._changed and self._archive_due)

    @property
    def _part_due(self) -> bool:
        pause = self._pace.part if self._news else self._pace.quiet
        pause = max(pause, min(self._cost / _SHARE, _LONGEST_SECONDS))
        return self._changed and self._now() - self._part_at >= pause

    @property
    def _archive_due(self) -> bool:
        return self._now() - self._archive_at >= self._pace.archive

    def tend(self) -> None:
        """Write what is due. Raises StoreError; then the next call tries again."""
        if self._changed and self._archive_due:
            self._archive_at = (
                self._now()
            )  # also after a failure: the own part is written until the next time
            self.fold()
        if self._part_due:
            self.flush()

    def flush(self) -> None:
        """Write the own part now. Raises StoreError."""
        with self._lock:
            if not self._changed:
                return
            self._changed = self._news = False
            part = self._recorder.part(self._now())
        self._part_at = self._now()  # also before a failure: storage that fails is not asked all the time
        began = time.thread_time()
        try:
            self._store.put(self._key, encode_part(part), durable=False)
            self._cost = time.thread_time() - began
        except BaseException:
            self._changed = self._news = True
            raise

    def fold(self) -> bool:
        """Create the next archive, with the own part and those of dead writers. Raises StoreError.

        Returns:
            Whether there is nothing left to fold. If not, others were faster each time, or a newer release has written
            here: the next fold takes it along.
        """
        for _ in range(_TRIES):
            now = self._now()
            with self._lock:
                own = self._recorder.part(now)
            stored = read_source(self._store, self._source)
            if stored.newer:
                return False
            cuts = _cuts(own, stored, now)
            dead = [
                part for part in stored.recent.values() if part.writer in cuts and part.writer != own.writer
            ]
            cut = cuts.get(own.writer, 0.0)
            if not _has_fresh([own, *dead], stored.archive, cuts):
                self._tidy(stored, cuts)
                return True
            whole = replace(fold(stored.archive, [own, *dead], cuts), writer=own.writer, at=now)
            if self._store.create(
                layout.history_archive(self._source, stored.number + 1), encode_part(whole)
            ) and (newest := self._newest(stored.number + 1, cuts)):
                with self._lock:
                    self._recorder.forget(cut)
                    self._changed = True
                self._tidy(replace(stored, keys=(*stored.keys, newest)), cuts)
                return True
        return False

    def _newest(self, number: int, cuts: Mapping[str, float]) -> str | None:
        """The key of the archive just created; None if readers do not use it.

        Other writers may have created and removed an archive of that number before. Then there is a newer one without
        what this writer has folded.
        """
        key = layout.history_archive(self._source, number)
        prefix = f"{layout.HISTORY}{self._source}/archive-"
        newer = [entry.key for entry in self._store.list(prefix) if number_of(entry.key) > number]
        if not newer:
            return key
        data = self._store.get(newer[-1])
        try:
            included = decode_part(data).includes if data else {}
        except HistoryUnreadable:
            included = {}
        if all(included.get(writer, 0.0) >= cut for writer, cut in cuts.items()):
            return key
        self._store.delete([key])
        return None

    def _tidy(self, stored: Stored, cuts: Mapping[str, float]) -> None:
        """Remove older archives, and the parts of dead writers, which an archive includes."""
        old = list(stored.keys[:-_KEPT_ARCHIVES])
        old += [key for key, part in stored.recent.items() if part.writer in cuts and key != self._key]
        if old:
            self._store.delete(old)


def _cuts(own: Part, stored: Stored, now: float) -> dict[str, float]:
    """Until when to take parts: the own one without the current minute, and those of dead writers whole."""
    found = {}
    for part in stored.recent.values():
        if part.writer != own.writer and (cut := cut_of(part)) <= now - DEAD_SECONDS:
            found[part.writer] = cut
    newest = cut_of(own) - 60.0
    if own.table.t and own.table.t[0] < newest:
        found[own.writer] = whole_minute(newest)
    return found


def _has_fresh(parts: list[Part], archive: Part, cuts: Mapping[str, float]) -> bool:
    """Whether any of these parts has something that the archive does not include yet."""
    return any(cuts.get(part.writer, 0.0) > archive.includes.get(part.writer, 0.0) for part in parts)
