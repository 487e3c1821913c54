"""The controller's part of the run's history: its series, and what lasted for a while."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records.history import CONTROLLER, HistoryWriter
from airflow_elastic.control.history.conditions import OpenConditions
from airflow_elastic.control.observer import Observer
from airflow_elastic.core.event_sentences import straggler_sentence, waits
from airflow_elastic.core.history.samples import controller_values
from airflow_elastic.core.state import Phase
from airflow_elastic.spec.errors import StoreError

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


class HistoryObserver(Observer):
    """Keeps the history.

    Args:
        store: where the run is stored.
        now: returns epoch seconds.
    """

    def __init__(self, store: Store, now: Callable[[], float]) -> None:
        self._now = now
        self._writer = HistoryWriter(store, CONTROLLER, now=now)
        self._sampled_at = float("-inf")
        self._changed = self._over = False
        self._conditions = OpenConditions(self._writer, now)
        self._task: asyncio.Task[None] | None = None

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        self._changed = True

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        self._conditions.end("trouble")

    def on_published(self, state: RunState, progress: Progress | None) -> None:
        self._see_submission(state)
        self._sample(state, progress)
        if self._writer.due and not self._over and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write())

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        if job.wait is None:
            self._conditions.end("waiting")
        else:
            held = [w.name for w in job.workers if w.waiting is job.wait.state]
            self._conditions.begin("waiting", waits(job.wait), workers=tuple(held))

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        self._conditions.end("straggler")
        if ranks:
            names = dict.fromkeys(rank.worker for rank in progress.ranks if rank.rank in ranks)
            text = straggler_sentence(progress, ranks)
            self._conditions.begin("straggler", text, workers=tuple(names), ranks=tuple(sorted(ranks)))

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self._conditions.begin("trouble", str(error))

    async def on_end(self, state: RunState) -> None:
        self._over = self._changed = True
        self._conditions.end()
        self._sample(state, None)
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._write(last=True)

    def _see_submission(self, state: RunState) -> None:
        """An attempt that cannot be submitted yet also waits; one that is over does not wait any more."""
        attempt = state.attempt
        if attempt.phase is Phase.SUBMITTING and attempt.wait is not None:
            self._conditions.begin("waiting", waits(attempt.wait))
        elif attempt.phase is not Phase.LIVE:
            self._conditions.end("waiting", "straggler")

    def _sample(self, state: RunState, progress: Progress | None) -> None:
        now = self._now()
        if self._changed or now - self._sampled_at >= _SAMPLE_SECONDS:
            self._writer.add(now, controller_values(state, progress, now), news=self._changed)
            self._sampled_at, self._changed = now, False
            self._conditions.last()

    async def _write(self, *, last: bool = False) -> None:
        """Write what is due; with `last` everything. A failure only delays it: the run does not depend on it."""
        try:
            await asyncio.to_thread(self._writer.flush if last else self._writer.tend)
        except StoreError as error:
            log.warning("the history could not be written, trying again: %s", error)
        except Exception:
            log.exception("the history could not be written, trying again")
