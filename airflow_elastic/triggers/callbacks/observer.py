"""Call a task's callbacks while its run goes on."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.control.observer import Observer
from airflow_elastic.core.overview.notices import Kind, Notice, Watch, notice
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.triggers.callbacks.call import call

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import Progress
    from airflow_elastic.triggers.observer import Log

#: A callback that fails is called so often, with such a pause in between. Then the log says that it was given up.
TRIES, PAUSE_SECONDS = 3, 5.0

#: How many seconds one call may take, and the end of a run waits for the last calls.
CALL_SECONDS = 60.0


@dataclass(slots=True)
class Reported:
    """The events that callbacks were called for, as NOTICES has it.

    Attributes:
        next: number of the first event of the journal that is not reported to all.
        calls: how many callbacks were called for that event.
        unhealthy: since when the run is unhealthy, if that was reported; None if it is well. Epoch seconds.
    """

    next: int = 0
    calls: int = 0
    unhealthy: float | None = None


class CallbackObserver(Observer):
    """Calls each callback at least once for each event, in order, and twice only after a crash.

    NOTICES says for which events they were called. The next observer makes up for the others. Training never waits for
    a callback.

    Args:
        store: the run's store.
        callbacks: by the names in CALLBACKS, as `plain_callbacks` gives them.
        context: what callbacks get beside the event: see ElasticTrainOperator.
        log: the task's log.
    """

    def __init__(
        self,
        store: Store,
        callbacks: Mapping[str, Sequence[Mapping[str, Any]]],
        context: Mapping[str, Any],
        log: Log,
    ) -> None:
        self._store, self._log = store, log
        self._context = {"run_uri": store.uri, **context}
        self._callbacks = {Kind(name.removeprefix("on_")): list(all_) for name, all_ in callbacks.items()}
        self._queue: deque[tuple[int | None, Notice]] = deque()  # with the number of the event
        self._number = -1
        self._newest = -1
        self._reported: Reported | None = None
        self._watch = Watch()
        self._is_well_again = False
        self._slow: frozenset[int] = frozenset()
        self._work: asyncio.Task[None] | None = None

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        self._number = 0 if before is None else self._number + 1
        found = notice(event, before, state)
        if found is not None and self._number > self._newest and self._callbacks.get(found.kind):
            self._queue.append((self._number, found))
        self._newest = max(self._newest, self._number)  # a new controller repeats all events

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        self._slow = ranks

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        self._begin()

    def on_published(self, state: RunState, progress: Progress | None) -> None:
        if not self._callbacks.get(Kind.UNHEALTHY) or self._reported is None:
            return
        now, attempt, before = time.time(), state.attempt, self._watch.reported
        shown = document(self._store.uri, state, progress, now, slow=self._slow)
        if (text := self._watch.look(shown, now)) is not None:
            step = state.newest_step(progress)
            found = Notice(Kind.UNHEALTHY, text, now, attempt.number, step, attempt.workers)
            self._queue.append((None, found))
        elif before is not None and self._watch.reported is None:
            self._is_well_again = True

    async def finish(self) -> None:
        """Make the calls that are left, for at most CALL_SECONDS."""
        self._begin()
        if self._work is not None and (await asyncio.wait({self._work}, timeout=CALL_SECONDS))[1]:
            self._work.cancel()
            left = "; ".join(found.text for _, found in self._queue)
            self._log.warning("%s", f"the run has ended, and callbacks were not called in time: {left}")

    def _begin(self) -> None:
        """Go on with the calls, in the background."""
        is_due = bool(self._queue) or self._reported is None or self._is_well_again
        if is_due and (self._work is None or self._work.done()):
            self._work = asyncio.create_task(self._make_calls(), name="callbacks")

    async def _make_calls(self) -> None:
        try:
            if self._reported is None:
                self._reported = await asyncio.to_thread(self._read)
                self._watch.reported = self._reported.unhealthy
            reported = self._reported
            while self._queue:
                number, found = self._queue[0]
                if number is None or number >= reported.next:
                    await self._report(reported, number, found)
                self._queue.popleft()
            if self._is_well_again:
                self._is_well_again, reported.unhealthy = False, None
                await asyncio.to_thread(self._write, reported)
        except StoreError as error:  # the next look goes on
            self._log.warning("%s", f"callbacks wait: {error}")

    async def _report(self, reported: Reported, number: int | None, found: Notice) -> None:
        done = reported.calls if number is not None and number == reported.next else 0
        callbacks = self._callbacks[found.kind]
        for index, callback in enumerate(callbacks):
            if index < done:
                continue
            await self._call(callback, found)
            if number is None:
                reported.unhealthy = found.at
            elif index + 1 < len(callbacks):
                reported.next, reported.calls = number, index + 1
            else:
                reported.next, reported.calls = number + 1, 0
            await asyncio.to_thread(self._write, reported)

    async def _call(self, callback: Mapping[str, Any], found: Notice) -> None:
        context = {**self._context, "event": found.plain()}
        for number in range(1, TRIES + 1):
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await call(callback["path"], callback["kwargs"], context)
            except Exception as error:  # any error of somebody's code
                is_last = number == TRIES or isinstance(error, ImportError)
                again = "it is given up" if is_last else f"it is called again in {PAUSE_SECONDS:g} s"
                failed = f"the callback {callback['path']} has failed: {type(error).__name__}: {error}"
                if isinstance(error, ImportError):
                    failed += " (the triggerer must be able to import it: install it, or put it into Airflow's plugins)"
                self._log.warning("%s", f"{failed}; {again}")
                if is_last:
                    return
            else:
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _read(self) -> Reported:
        data = self._store.get(layout.NOTICES)
        try:
            return Reported(**json.loads(data)) if data else Reported()
        except (ValueError, TypeError):  # of another release: some are reported once more
            return Reported()

    def _write(self, reported: Reported) -> None:
        self._store.put(layout.NOTICES, json.dumps(asdict(reported)).encode())
