"""Read the output of ranks while it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.rank_output import BEHIND_BYTES, Log, Output, ends_of, logs_in
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_elastic.adapters.storage.store import Entry, Store


def find_logs(store: Store, attempt: int | None = None) -> list[Log]:
    """The output files of one attempt or of all, oldest first."""
    return logs_in(_entries(store, attempt))


def _entries(store: Store, attempt: int | None) -> list[Entry]:
    return store.list(layout.LOGS if attempt is None else layout.attempt_logs(attempt))


class Tail:
    """Reads the new lines of output since the last read.

    Args:
        store: the run's store.
        rank: read only the output of this rank. Default: all ranks.
    """

    def __init__(self, store: Store, *, rank: int | None = None) -> None:
        self._store, self._rank = store, rank
        self._outputs: dict[Log, Output] = {}

    def skip(self) -> None:
        """Leave out all output that exists already."""
        entries = _entries(self._store, None)
        for log in self._mine(entries):
            size = sum(part.size for part in Output(self._store, log.key).parts(entries))
            self._outputs[log] = Output(self._store, log.key, size)

    def news(
        self, attempt: int | None = None, *, last: bool = False, live: bool = False, most: int | None = None
    ) -> Iterator[tuple[Log, list[str]]]:
        """New lines, in batches.

        Args:
            attempt: read only the output of this attempt. Default: all attempts.
            last: also return the last line if it has no line end.
            live: leave out lines that are too many to be read in time, and say so.
            most: leave out lines beyond so many of one rank, and say so. Default: no limit.
        """
        entries = _entries(self._store, attempt)
        for log in self._mine(entries):
            output = self._outputs.setdefault(log, Output(self._store, log.key))
            batches = output.news(output.parts(entries), behind=BEHIND_BYTES if live else None)
            if most is not None:
                batches = iter([ends_of(batches, most, f"{self._store.uri}/{log.key}")])
            for lines in batches:
                if lines:
                    yield log, lines
            if last and (rest := output.rest()):
                yield log, rest

    def _mine(self, entries: Iterable[Entry]) -> list[Log]:
        return [log for log in logs_in(entries) if self._rank in (None, log.rank)]
