"""What lasts at the moment: at most one condition of each kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.spec.history import Condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.records.history import HistoryWriter

_MOST_LETTERS = 500


class OpenConditions:
    """Notes in the history when a condition begins, that it still lasts, and when it ends.

    Args:
        writer: of the history.
        now: returns epoch seconds.
    """

    def __init__(self, writer: HistoryWriter, now: Callable[[], float]) -> None:
        self._writer, self._now = writer, now
        self._open: dict[str, Condition] = {}

    def begin(
        self, kind: str, text: str, *, workers: tuple[str, ...] = (), ranks: tuple[int, ...] = ()
    ) -> None:
        """A condition holds; if another one of this kind did until now, that one ends."""
        now = self._now()
        new = Condition(kind, now, now, text[:_MOST_LETTERS], workers, ranks, open=True)
        old = self._open.get(kind)
        if old is not None and (old.text, old.workers, old.ranks) == (new.text, workers, ranks):
            return
        self.end(kind)
        self._open[kind] = new
        self._writer.note(new)

    def end(self, *kinds: str) -> None:
        """The conditions of these kinds, if there are any, hold no longer; without a kind: all."""
        for kind in kinds or tuple(self._open):
            one = self._open.pop(kind, None)
            if one is not None:
                self._writer.note(replace(one, until=self._now(), open=False))

    def last(self) -> None:
        """Those that are open still hold."""
        for one in self._open.values():
            self._writer.note(replace(one, until=self._now()), news=False)
