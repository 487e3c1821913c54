"""Follow rank 0's output while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.rank_output import Output, ends_of
from airflow_elastic.spec import layout

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.status import Progress

#: Most lines passed on at each look; the log shows only the number of the others, as it must not grow to gigabytes.
LINES = 200

_BEHIND_BYTES = 8 << 20
_BACK_BYTES = 16 << 10
_LONGEST_LINE = 4000


class RankOutput:
    """Follows the output of rank 0 from attempt to attempt, and from generation to generation.

    Args:
        store: the run's store.
        tell: is called with each line.
        since: epoch seconds; an earlier observer has shown the attempts that were submitted before.
    """

    def __init__(self, store: Store, tell: Callable[[str], None], *, since: float = 0.0) -> None:
        self._store = store
        self._since = since
        self._tell = tell
        self._at: tuple[int, int] | None = None  # attempt and generation
        self._output: Output | None = None

    @property
    def position(self) -> list[int] | None:
        """Attempt, generation and offset in bytes of the next line, for `resume`; plain JSON."""
        return None if self._at is None or self._output is None else [*self._at, self._output.at]

    def resume(self, position: object) -> None:
        """Go on from a `position`; anything else is ignored."""
        if isinstance(position, list) and len(position) == 3 and all(isinstance(n, int) for n in position):
            attempt, generation, offset = position
            self._go_to((attempt, generation), offset)

    async def follow(self, state: RunState, progress: Progress | None) -> None:
        """Pass on the new lines."""
        if self._at is None:
            await self._begin(state, progress)
        await self._show()
        for place in _places(state, progress):
            if self._at is None or place > self._at:
                await self.finish()
                self._go_to(place)
                await self._show()

    async def _begin(self, state: RunState, progress: Progress | None) -> None:
        """Begin with the first attempt submitted after `since`, else with the newest lines of the newest attempt."""
        places = _places(state, progress)
        ours = {attempt.number for attempt in state.attempts if (attempt.submitted_at or 0.0) >= self._since}
        begun = next((place for place in places if place[0] in ours), places[-1])
        output = self._go_to(begun)
        if begun[0] not in ours:
            told = await asyncio.to_thread(lambda: output.tail(output.parts(), _BACK_BYTES))
            for line in told:
                self._tell(line)

    def _go_to(self, place: tuple[int, int], offset: int = 0) -> Output:
        attempt, generation = self._at = place
        key = layout.attempt_logs(attempt) + layout.rank_log(generation, 0)
        self._output = Output(self._store, key, offset, longest=_LONGEST_LINE)
        return self._output

    async def finish(self) -> None:
        """Pass on the rest, once rank 0 has ended."""
        await self._show(last=True)

    async def _show(self, *, last: bool = False) -> None:
        if (output := self._output) is None:
            return
        for line in await asyncio.to_thread(_new_lines, output, self._store.uri, last=last):
            self._tell(line)


def _new_lines(output: Output, uri: str, *, last: bool) -> list[str]:
    news = output.news(output.parts(), behind=_BEHIND_BYTES)
    return [*ends_of(news, LINES, f"{uri}/{output.key}"), *(output.rest() if last else [])]


def _places(state: RunState, progress: Progress | None) -> list[tuple[int, int]]:
    """Attempt and generation of each output of the run, oldest first."""
    places = []
    for attempt in state.attempts:
        told = progress if progress is not None and progress.attempt == attempt.number else attempt.progress
        stretches = told.stretches if told else ()
        places += [(attempt.number, stretch.generation) for stretch in stretches] or [(attempt.number, 1)]
    return places
