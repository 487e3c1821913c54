"""Show a run while it goes on: events and rank 0's lines in the task's log, progress as an XCom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.control.observer import Observer
from airflow_elastic.core.event_sentences import sentence, straggler_sentence, waiting
from airflow_elastic.core.severity import Severity, severity_of
from airflow_elastic.core.status_document import word
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.status import Progress
from airflow_elastic.triggers.output import RankOutput
from airflow_elastic.triggers.task import call

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Wait

#: The key of the XCom with the progress of a running task.
PROGRESS_KEY = "progress"

#: Shortest time in seconds between two writes of that XCom.
PROGRESS_SECONDS = 5.0

#: How many seconds the end of a run waits for each call to Airflow or the storage.
_PATIENCE_SECONDS = 30.0


class Log(Protocol):
    """The part of a task's logger that is used here."""

    def info(self, event: str, *args: object) -> Any: ...
    def warning(self, event: str, *args: object) -> Any: ...
    def error(self, event: str, *args: object) -> Any: ...


class TaskObserver(Observer):
    """Logs the events from now on. Earlier events were logged by an earlier observer.

    Args:
        log: the task's log.
        store: the run's store.
        push: stores an XCom of the task; blocks, and may raise. Default: progress goes only to the log.
        pushed: reads an XCom of the task; blocks, and may raise. The XCom of an earlier triggerer says where rank 0's
            output goes on. Default: the output starts from the beginning.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        push: Callable[[str, Any], None] | None = None,
        *,
        pushed: Callable[[str], Any] | None = None,
    ) -> None:
        self._log = log
        self._push = push
        self._since = time.time()
        self._output = RankOutput(store, lambda line: log.info("%s", f"[rank 0] {line}"), since=self._since)
        self._pushed = pushed
        self._resuming: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._state: RunState | None = None
        self._seen: tuple[RunState, Progress | None] | None = None
        self._waiting: tuple[int, Wait | None] = (0, None)
        self._pushed_at = 0.0
        self._pushing: asyncio.Task[None] | None = None

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        self._state = state
        if event.at >= self._since:
            text = sentence(event, before, state)
            if text is not None:
                level = {Severity.WARNING: self._log.warning, Severity.ERROR: self._log.error}
                level.get(severity_of(event, before, state), self._log.info)("%s", text)

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        self._waiting = (state.attempt.number, job.wait)
        if (text := waiting(state, job)) is not None:
            self._log.info("%s", text)

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        (self._log.warning if ranks else self._log.info)("%s", straggler_sentence(progress, ranks))

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        self._log.warning(
            "%s", f"failed call number {times} in a row: {error}; the next try is in {pause:.1f} s"
        )

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        # This does not wait: an Airflow that does not answer, or a script with much output, must not delay a restart.
        if self._resuming is None:
            self._resuming = asyncio.create_task(self._resume())
        self._seen = (state, progress)
        if self._resuming.done() and (self._following is None or self._following.done()):
            self._following = asyncio.create_task(self._follow())
        idle = self._pushing is None or self._pushing.done()
        if progress is not None and idle and time.monotonic() - self._pushed_at >= PROGRESS_SECONDS:
            self._pushed_at = time.monotonic()
            self._pushing = asyncio.create_task(self._push_progress(state, progress))

    async def finish(self) -> None:
        """Log the rest of rank 0's output, and store the last progress."""
        if self._resuming is not None:
            await asyncio.wait({self._resuming}, timeout=_PATIENCE_SECONDS)
        rest = asyncio.create_task(self._follow(last=True, after=self._following))
        if (await asyncio.wait({rest}, timeout=_PATIENCE_SECONDS))[1]:
            rest.cancel()
            self._log.warning(
                "%s", "the end of rank 0's output cannot be read in time: look with `airflow-elastic logs`"
            )
        if self._state is not None:
            seen = self._seen[1] if self._seen else None
            last = asyncio.create_task(self._push_progress(self._state, seen, after=self._pushing))
            await asyncio.wait({last}, timeout=_PATIENCE_SECONDS)

    async def _follow(self, *, last: bool = False, after: asyncio.Task[None] | None = None) -> None:
        if after is not None:
            await asyncio.wait({after})
        try:
            if self._seen is not None:
                await self._output.follow(*self._seen)
            if last:
                await self._output.finish()
        except StoreError as error:
            if last:
                self._log.warning("%s", f"the end of rank 0's output cannot be read: {error}")

    async def _resume(self) -> None:
        if self._pushed is None:
            return
        try:
            progress = await call(self._pushed, PROGRESS_KEY)
        except Exception as error:  # any error of Airflow: some lines then appear twice in the log
            self._log.warning("%s", f"the progress of this task cannot be read: {error}")
        else:
            self._output.resume(progress.get("log_position") if isinstance(progress, dict) else None)

    async def _push_progress(
        self, state: RunState, progress: Progress | None, *, after: asyncio.Task[None] | None = None
    ) -> None:
        if self._push is None:
            return
        if after is not None:
            await asyncio.wait({after})
        if progress is None or progress.attempt != state.attempt.number:
            progress = state.attempt.progress or Progress(state.attempt.number, state.ended_at or time.time())
        number, wait = self._waiting
        value = {
            "state": word(state, progress, wait if number == state.attempt.number else None),
            "attempt": state.attempt.number,
            "workers": state.attempt.workers,
            "world_size": progress.world_size,
            "step": state.newest_step(progress),
            "total_steps": progress.total_steps,
            "loss": progress.loss,
            "samples_per_second": progress.samples_per_second,
            "checkpoint": state.checkpoint.step if state.checkpoint else None,
            "at": progress.at,
            "log_position": self._output.position,
        }
        try:
            await call(self._push, PROGRESS_KEY, value)
        except Exception as error:  # any error of Airflow: training does not depend on this XCom
            self._log.warning("%s", f"the progress could not be stored as an XCom: {error}")
