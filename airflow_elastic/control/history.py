"""The controller's part of the run's history: its series, and what lasted for a while."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history import CONTROLLER, HistoryWriter
from airflow_elastic.control.observer import Observer
from airflow_elastic.core.event_sentences import straggler_sentence, waits
from airflow_elastic.core.history.samples import controller_values
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.history import Condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress

log = logging.getLogger(__name__)

#: Between two values of the series, unless an event comes between.
_SAMPLE_SECONDS = 10.0

_MOST_LETTERS = 500


class HistoryObserver(Observer):
    """Keeps the history, and hands everything on to another observer.

    Args:
        observer: the other one.
        store: where the run is stored.
        now: returns epoch seconds.
    """

    def __init__(self, observer: Observer, store: Store, now: Callable[[], float]) -> None:
        self._observer, self._now = observer, now
        self._writer = HistoryWriter(store, CONTROLLER, now=now)
        self._sampled_at = float("-inf")
        self._changed = False
        self._open: dict[str, Condition] = {}
        self._task: asyncio.Task[None] | None = None

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        self._changed = True
        self._observer.on_event(event, before, state)

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        await self._observer.on_progress(state, progress)

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        self._end("trouble")
        self._see_submission(state)
        self._sample(state, progress)
        if self._writer.due and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write())
        await self._observer.on_look(state, progress)

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        if job.wait is None:
            self._end("waiting")
        else:
            held = [w.name for w in job.workers if w.waiting is job.wait.state]
            self._begin("waiting", waits(job.wait), workers=tuple(held))
        self._observer.on_waiting(state, job)

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        self._end("straggler")
        if ranks:
            names = dict.fromkeys(rank.worker for rank in progress.ranks if rank.rank in ranks)
            text = straggler_sentence(progress, ranks)
            self._begin("straggler", text, workers=tuple(names), ranks=tuple(sorted(ranks)))
        self._observer.on_lagging(state, progress, ranks)

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self._begin("trouble", str(error))
        self._observer.on_trouble(error, times, pause)

    async def on_end(self, state: RunState) -> None:
        for kind in [*self._open]:
            self._end(kind)
        self._changed = True
        self._sample(state, None)
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._write(last=True)
        await self._observer.on_end(state)

    def _see_submission(self, state: RunState) -> None:
        """An attempt that cannot be submitted yet also waits; one that is over does not wait any more."""
        attempt = state.attempt
        if attempt.phase is Phase.SUBMITTING and attempt.wait is not None:
            self._begin("waiting", waits(attempt.wait))
        elif attempt.phase is not Phase.LIVE:
            self._end("waiting")
            self._end("straggler")

    def _sample(self, state: RunState, progress: Progress | None) -> None:
        now = self._now()
        if self._changed or now - self._sampled_at >= _SAMPLE_SECONDS:
            self._writer.add(now, controller_values(state, progress, now), news=self._changed)
            self._sampled_at, self._changed = now, False
            for kind, one in self._open.items():
                self._see(kind, one)

    def _begin(
        self, kind: str, text: str, *, workers: tuple[str, ...] = (), ranks: tuple[int, ...] = ()
    ) -> None:
        now, text = self._now(), text[:_MOST_LETTERS]
        former = self._open.get(kind)
        if former is not None and (former.text, former.workers, former.ranks) == (text, workers, ranks):
            return
        self._end(kind)
        self._see(kind, Condition(kind, now, now, text, workers, ranks, open=True), news=True)

    def _see(self, kind: str, one: Condition, *, news: bool = False) -> None:
        """Note that it still lasts."""
        self._open[kind] = seen = Condition(
            kind, one.since, self._now(), one.text, one.workers, one.ranks, open=True
        )
        self._writer.note(seen, news=news)

    def _end(self, kind: str) -> None:
        one = self._open.pop(kind, None)
        if one is not None:
            self._writer.note(Condition(kind, one.since, self._now(), one.text, one.workers, one.ranks))

    async def _write(self, *, last: bool = False) -> None:
        """Write what is due; with `last` everything. A failure only delays it: the run does not depend on it."""
        try:
            await asyncio.to_thread(self._writer.flush if last else self._writer.tend)
        except StoreError as error:
            log.warning("the history could not be written, trying again: %s", error)
        except Exception:
            log.exception("the history could not be written, trying again")
