"""The output of ranks, read while it grows: in whole lines, at a bounded cost, however much a script prints.

A live view skips output if too much has come at once, and says so in a line. The run keeps the whole output. Reads
block: do not call this in the controller's event loop.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_elastic.adapters.storage.store import Entry, Store

#: A longer line is cut to so many bytes.
LONGEST_LINE = 16 << 10

#: The most bytes that a live view reads at once; if there are more, only the newest eighth of this is shown.
BEHIND_BYTES = 64 << 20

_CHUNK_BYTES = 1 << 20

_LOG = re.compile(re.escape(layout.LOGS) + r"attempt-(\d+)/g(\d+)-rank-(\d+)\.log")


@dataclass(frozen=True, slots=True, order=True)
class Log:
    """One file of output, of one rank in one generation of an attempt. Sorts by age."""

    attempt: int
    generation: int
    rank: int

    @property
    def key(self) -> str:
        """Its key in the run's store."""
        return layout.attempt_logs(self.attempt) + layout.rank_log(self.generation, self.rank)


def logs_in(entries: Iterable[Entry]) -> list[Log]:
    """The output files among what a store has listed, oldest first."""
    matches = (_LOG.fullmatch(entry.key) for entry in entries)
    return sorted(Log(int(m[1]), int(m[2]), int(m[3])) for m in matches if m)


class Output:
    """One rank's output in one generation, read on from the last position.

    Args:
        store: where the run is stored.
        key: of the output: `layout.attempt_logs(…) + layout.rank_log(…)`.
        at: the first byte to read.
        longest: the most bytes of a line to keep.
    """

    def __init__(self, store: Store, key: str, at: int = 0, *, longest: int = LONGEST_LINE) -> None:
        self._store, self.key, self._longest = store, key, longest
        self._read = self._line_at = at
        self._line, self._left, self._ended = b"", 0, False
        self._skipping = False

    @property
    def at(self) -> int:
        """The position of the next line's first byte."""
        return self._line_at

    def parts(self, entries: Iterable[Entry] | None = None) -> list[Entry]:
        """Its parts so far, in order.

        Args:
            entries: what a store has listed. Default: list them now.
        """
        entries = self._store.list(self.key) if entries is None else entries
        return [entry for entry in entries if layout.is_part(entry.key, self.key)]

    def news(self, parts: Sequence[Entry], *, behind: int | None = BEHIND_BYTES) -> Iterator[list[str]]:
        """The lines that are complete by now, in batches; without those that are written during the call.

        Args:
            parts: see `parts`.
            behind: the most bytes to read; None for all.
        """
        until = sum(part.size for part in parts)
        if behind is not None and until - self._read > behind:
            yield self._skip(until - behind // 8)
        while self._read < until and (lines := self._some(parts)) is not None:
            yield lines

    def rest(self) -> list[str]:
        """The last line without an end, after the output is complete."""
        line, self._line_at = self._text(), self._read
        empty = not self._line
        self._line, self._left = b"", 0
        return [] if empty else [line]

    def tail(self, parts: Sequence[Entry], size: int) -> list[str]:
        """Go to the newest `size` bytes. If there is more before them, a line says so."""
        until = sum(part.size for part in parts)
        return self._skip(until - size) if until - size > self._read else []

    def _skip(self, to: int) -> list[str]:
        lines = self.rest()
        left, self._read, self._skipping = to - self._read, to, True
        self._line_at = to
        return [
            *lines,
            f"({size_in_words(left)} left out here: the whole log is in {self._store.uri}/{self.key})",
        ]

    def _some(self, parts: Sequence[Entry]) -> list[str] | None:
        data = self._chunk(parts)
        if not data:
            return None
        self._read += len(data)
        if self._skipping:
            before, ended, data = data.partition(b"\n")
            self._skipping = not ended
            self._line_at += len(before) + len(ended)
        *ends, rest = data.split(b"\n")
        lines = []
        for end in ends:
            self._add(end)
            lines.append(self._text())
            self._line, self._left, self._ended = b"", 0, False
        if ends:
            self._line_at = self._read - len(rest)
        self._add(rest)
        return lines

    def _chunk(self, parts: Sequence[Entry]) -> bytes:
        start = self._read
        for part in parts:
            if start < part.size:
                return self._store.read_from(part.key, start, _CHUNK_BYTES)
            start -= part.size
        return b""

    def _add(self, piece: bytes) -> None:
        """Add to the current line. Progress bars return to its beginning; the text at its end counts."""
        if self._ended and piece.strip(b"\r"):
            self._line, self._left = b"", 0
        _, returned, last = piece.rstrip(b"\r").rpartition(b"\r")
        if returned:
            self._line, self._left = b"", 0
        self._ended = piece.endswith(b"\r") or (self._ended and not piece)
        room = max(0, self._longest - len(self._line))
        self._line += last[:room]
        self._left += max(0, len(last) - room)

    def _text(self) -> str:
        more = f"… ({size_in_words(self._left)} more of this line)" if self._left else ""
        return self._line.decode(errors="replace") + more


def ends_of(batches: Iterable[list[str]], lines: int, where: str) -> list[str]:
    """The first and the last lines of many, with a line between them that says how many are left out.

    Args:
        batches: the lines.
        lines: the most lines to return.
        where: the place of all lines.
    """
    first, last, count = list[str](), deque[str](maxlen=lines - lines // 2), 0
    for batch in batches:
        count += len(batch)
        room = max(0, lines // 2 - len(first))
        first += batch[:room]
        last.extend(batch[room:])
    left = count - len(first) - len(last)
    return [*first, *([f"({left} more lines are in {where})"] if left else []), *last]


def size_in_words(count: int) -> str:
    """As megabytes, or as bytes where they are few."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} bytes"
