"""The output of ranks, read as it grows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.store import Store

_LOG = re.compile(re.escape(layout.LOGS) + r"attempt-(\d+)/g(\d+)-rank-(\d+)\.log")


@dataclass(frozen=True, slots=True, order=True)
class Log:
    """One file of output: of one rank, in one generation of an attempt. Sorts by age."""

    attempt: int
    generation: int
    rank: int

    @property
    def key(self) -> str:
        """Where it lies."""
        return layout.attempt_logs(self.attempt) + layout.rank_log(self.generation, self.rank)


def find_logs(store: Store, attempt: int | None = None) -> list[Log]:
    """The output there is, of one attempt or of all, oldest first."""
    prefix = layout.LOGS if attempt is None else layout.attempt_logs(attempt)
    matches = (_LOG.fullmatch(entry.key) for entry in store.list(prefix))
    return sorted(Log(int(m[1]), int(m[2]), int(m[3])) for m in matches if m)


class Tail:
    """Reads output from where it was left, in whole lines.

    Args:
        store: where the run lies.
        rank: only this rank's; None for all.
    """

    def __init__(self, store: Store, *, rank: int | None = None) -> None:
        self._store, self._rank = store, rank
        self._read: dict[Log, int] = {}
        self._rest: dict[Log, bytes] = {}

    def skip(self) -> None:
        """Leave out all that there is already."""
        for log in self._mine(None):
            size = next((e.size for e in self._store.list(log.key) if e.key == log.key), 0)
            self._read[log] = size

    def lines(self, attempt: int | None = None, *, last: bool = False) -> Iterator[tuple[Log, str]]:
        """New lines; with `last` also those that nobody has ended."""
        for log in self._mine(attempt):
            yield from self._lines_of(log, last=last)

    def _mine(self, attempt: int | None) -> list[Log]:
        return [log for log in find_logs(self._store, attempt) if self._rank in (None, log.rank)]

    def _lines_of(self, log: Log, *, last: bool) -> Iterator[tuple[Log, str]]:
        while chunk := self._store.read_from(log.key, self._read.get(log, 0)):
            self._read[log] = self._read.get(log, 0) + len(chunk)
            *whole, rest = (self._rest.get(log, b"") + chunk).split(b"\n")
            self._rest[log] = rest
            for line in whole:
                yield log, _text(line)
        if last and self._rest.get(log):
            yield log, _text(self._rest.pop(log))


def _text(line: bytes) -> str:
    # Progress bars go back to the beginning of their line: what stands there at the end is what counts.
    return line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
