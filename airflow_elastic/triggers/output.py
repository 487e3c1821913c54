"""Rank 0's output, followed while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress

#: Lines handed on at each look; of the others only their number is told. A task's log is no place for gigabytes.
LINES = 200

_CHUNK_BYTES = 1 << 20
_CHUNKS = 8
_LONGEST_LINE = 4000
_BACK_BYTES = 16 << 10


class RankOutput:
    """Follows the output of rank 0 from attempt to attempt, and from generation to generation.

    Args:
        store: where the run lies.
        tell: is given each line.
        since: epoch second; attempts that were submitted earlier were somebody else's to tell of.
    """

    def __init__(self, store: Store, tell: Callable[[str], None], *, since: float = 0.0) -> None:
        self._store = store
        self._since = since
        self._tell = tell
        self._at: tuple[int, int] | None = None  # attempt and generation
        self._offset = 0
        self._partial = b""

    @property
    def position(self) -> list[int] | None:
        """Attempt, generation and offset in bytes of what comes next: for `resume`, in plain JSON."""
        return None if self._at is None else [*self._at, self._offset - len(self._partial)]

    def resume(self, position: object) -> None:
        """Go on from a `position`; anything else is ignored."""
        if isinstance(position, list) and len(position) == 3 and all(isinstance(n, int) for n in position):
            attempt, generation, self._offset = position
            self._at = (attempt, generation)

    async def follow(self, state: RunState, progress: Progress | None) -> None:
        """Hand on what is new."""
        if self._at is None:
            await self._begin(state, progress)
        await self._read()
        for place in _places(state, progress):
            if self._at is None or place > self._at:
                self._flush()
                self._at, self._offset = place, 0
                await self._read()

    async def _begin(self, state: RunState, progress: Progress | None) -> None:
        """With the first attempt that began under our eyes; of one that was there before, with its newest lines."""
        places = _places(state, progress)
        ours = {attempt.number for attempt in state.attempts if (attempt.submitted_at or 0.0) >= self._since}
        self._at = next((place for place in places if place[0] in ours), places[-1])
        key = self._key(*self._at)
        entries = await asyncio.to_thread(self._store.list, key)
        if entries and entries[0].size > 4 * _BACK_BYTES and self._at[0] not in ours:
            self._offset = entries[0].size - _BACK_BYTES
            self._tell(f"(earlier lines are in {self._store.uri}/{key})")

    @staticmethod
    def _key(attempt: int, generation: int) -> str:
        return layout.attempt_logs(attempt) + layout.rank_log(generation, 0)

    async def finish(self) -> None:
        """Hand on the rest: nothing is written any more."""
        if self._at is not None:
            await self._read()
            self._flush()

    async def _read(self) -> None:
        key = self._key(*(self._at or (1, 1)))
        told = left = 0
        for _ in range(_CHUNKS):
            data = await asyncio.to_thread(self._store.read_from, key, self._offset, _CHUNK_BYTES)
            self._offset += len(data)
            *lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) > _CHUNK_BYTES:  # no line at all: it is cut rather than kept
                lines, self._partial = [*lines, self._partial], b""
            shown = lines[: max(0, LINES - told)]
            for line in shown:
                self._tell(_text(line))
            told, left = told + len(shown), left + len(lines) - len(shown)
            if len(data) < _CHUNK_BYTES:
                break
        if left:
            self._tell(f"({left} more lines are in {self._store.uri}/{key})")

    def _flush(self) -> None:
        if self._partial:
            self._tell(_text(self._partial))
            self._partial = b""


def _places(state: RunState, progress: Progress | None) -> list[tuple[int, int]]:
    """Attempt and generation of every output there is, oldest first."""
    places = []
    for attempt in state.attempts:
        told = progress if progress is not None and progress.attempt == attempt.number else attempt.progress
        stretches = told.stretches if told else ()
        places += [(attempt.number, stretch.generation) for stretch in stretches] or [(attempt.number, 1)]
    return places


def _text(line: bytes) -> str:
    """A line as it would have looked in a terminal: of a progress bar, what stands there at the end."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
    return text if len(text) <= _LONGEST_LINE else text[:_LONGEST_LINE] + "…"
