"""The controller: it carries out the due actions, journals events, and can be replaced at any line.

Its whole state is in the journal. Its loop asks the machine for the actions that are due, and carries them out. If none
is due, it waits for the end of a worker, a request, a report, or a time. Each event is appended to the journal before
it counts. If another controller was faster, this one reads the journal instead.

It runs wherever there is an event loop: in Airflow's triggerer, in a worker, in a shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, cast

from airflow_elastic.adapters.records import reports
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.control.history import HistoryObserver
from airflow_elastic.control.job_watch import JobWatch
from airflow_elastic.control.jobs import answered, job_of, set_newer_aside, tidy_up
from airflow_elastic.control.observer import Observer, Observers
from airflow_elastic.control.poll import Polled, events_of, new_checkpoints, poll
from airflow_elastic.control.scaling.past_runs import PastRunsObserver
from airflow_elastic.control.scaling.steps import Scaling
from airflow_elastic.control.stacks import with_stacks
from airflow_elastic.control.status_refresh import refreshing_status
from airflow_elastic.control.waits import Waits
from airflow_elastic.core.health.deadlines import overdue
from airflow_elastic.core.health.recovery import recovered
from airflow_elastic.core.health.settle_time import ALONE_SECONDS, settle_time
from airflow_elastic.core.health.stragglers import StragglerTracker
from airflow_elastic.core.machine import create, due, evolve
from airflow_elastic.core.state import Cause, Phase, RunState
from airflow_elastic.core.status_document import document, placement_of
from airflow_elastic.engines.api import Engine, Job, Rejoining
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.actions import (
    Action,
    Delete,
    Finish,
    OrderSave,
    Pause,
    Rejoin,
    Scale,
    SetNewerAside,
    Submit,
)
from airflow_elastic.spec.errors import EngineError, RunMissing, StoreError, SubmitHeld, SubmitRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress

#: The status document shows, also to agents, that a controller is at work. It is renewed with each event, and otherwise
#: at this interval, but at least four times within `health.unattended_seconds`. Each write costs two disk flushes, or
#: a paid request.
STATUS_SECONDS = 5.0

#: The longest pause while storage or engine are out of reach; also at most a quarter of `unattended_seconds`.
TROUBLE_SECONDS = 30.0


class Controller:
    """Drives one run to its end.

    Args:
        store: where the run is stored.
        engine: where its workers run.
        observer: receives what happens, for logs and progress lines.
        poll_seconds: the interval between looks for requests, reports and checkpoints.
        now: returns epoch seconds.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        *,
        observer: Observer | None = None,
        poll_seconds: float = 1.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._engine = store, engine
        kept = HistoryObserver(store, now), PastRunsObserver(store)
        self._observer = Observers(*kept, observer or Observer())
        self._poll_seconds, self._now = poll_seconds, now
        self._journal, self._mailbox = Journal(store), Mailbox(store)
        self._state: RunState | None = None
        self._progress: Progress | None = None
        self._waits = Waits()
        self._lagging = StragglerTracker(time.monotonic)
        self._failed_since: float | None = None
        self._wake = asyncio.Event()
        self._watching = JobWatch(engine, self._wake, self._sit_out)
        self._scaling = Scaling(engine, self._wake, now)
        self._seq = self._troubles = 0
        self._published_at = -STATUS_SECONDS
        self._publishing = asyncio.Lock()

    async def drive(self) -> RunState:
        """Carry the run on until its last event is written, and return its state.

        It may be cancelled at any point. The run is then as if this controller had been killed, for another to go on.

        Raises:
            RunMissing: there is no run at the store.
        """
        try:
            await self._catch_up()
            if self._state is None:
                raise RunMissing(f"{self._store.uri} holds no run: start one with `airflow-elastic run`")
            while not self.state.ended:
                seconds = min(STATUS_SECONDS, self._longest_pause)
                async with refreshing_status(self._publish, lambda: self._published_at, seconds):
                    await self._advance()
            await asyncio.gather(self._publish(), self._observer.on_end(self.state))
            return self.state
        finally:
            await self._unwatch()

    @property
    def state(self) -> RunState:
        """The run's state as far as this controller has read it. Raises RunMissing before the first read."""
        if self._state is None:
            raise RunMissing(f"{self._store.uri} has not been read yet")
        return self._state

    @property
    def _job(self) -> JobStatus | None:
        return self._watching.status

    @property
    def _longest_pause(self) -> float:
        return min(TROUBLE_SECONDS, self.state.spec.health.unattended_seconds / 4)

    async def _advance(self) -> None:
        """Do what is due, or wait for something to happen. Errors of storage and engine only delay the run."""
        before = self.state
        try:
            for action in self._scaling.due(before):
                await self._carry_out(action)
                if self.state is not before:
                    break
            else:
                await self._wait()
            self._troubles = 0
        except (StoreError, EngineError) as error:
            self._troubles += 1
            await self._sit_out(error, self._troubles)
            with contextlib.suppress(StoreError):
                await self._look_around()  # there may be a request to stop
                await self._publish()

    async def _sit_out(self, error: ElasticError, times: int) -> None:
        """Report an error that comes for the `times`-th time in a row, and wait before the next try."""
        pause = min(self._longest_pause, 0.2 * 2.0 ** min(times, 10)) * random.uniform(0.5, 1.0)
        if not isinstance(error, SubmitHeld):  # it has an event of its own
            self._observer.on_trouble(error, times, pause)
        await asyncio.sleep(pause)

    # -- doing ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, action: Action) -> None:
        match action:
            case Submit():
                await self._submit(action)
            case Rejoin():
                await self._rejoin(action)
            case Scale():
                if (event := await self._scaling.carry_out(action, self._job_of(action.attempt))) is not None:
                    await self._record(event)
            case OrderSave():
                await self._order(action.attempt, reports.Orders(save=action.request))
                await self._record(ev.SaveOrdered(self._now(), action.attempt, action.request))
            case SetNewerAside():
                event = await asyncio.to_thread(set_newer_aside, self._store, self.state, action, self._now())
                await self._record(event)
            case Delete():
                await self._delete(action)
            case Pause():
                await self._wait(until=action.until)
                if self._now() >= action.until:
                    await self._record(ev.BackoffElapsed(self._now(), action.attempt))
            case Finish():
                await self._engine.close(self._job_of(self.state.attempt.number))
                await asyncio.to_thread(tidy_up, self._store, self.state)
                await self._record(ev.RunEnded(self._now(), action.outcome, action.reason))

    async def _submit(self, action: Submit) -> None:
        if len(self.state.lives) == 1:  # somebody may have chosen a checkpoint before the run was reopened
            await self._look_around()
            if action not in due(self.state):
                return
        job = self._job_of(action.attempt)
        # The fence comes first. From here on no earlier attempt can commit anything, even if its processes still run.
        await asyncio.to_thread(reports.raise_fence, self._store, action.attempt)
        await self._look_for_checkpoint()
        try:
            await self._engine.submit(job)
        except (SubmitHeld, SubmitRefused) as no:
            await self._record(answered(no, self._now(), action.attempt))
            if self.state.attempt.held is not None:
                raise SubmitHeld(str(no)) from no  # the loop tries again later
        else:
            await self._record(ev.AttemptSubmitted(self._now(), action.attempt, job.name))

    async def _rejoin(self, action: Rejoin) -> None:
        await self._scaling.end()
        # No fence: the agents of the previous attempt still write what it has saved. The last of them raises it.
        await self._look_for_checkpoint()
        job = self._job_of(action.attempt)
        engine, lost = cast("Rejoining", self._engine), (action.lost,) if action.lost else ()
        try:
            others = await engine.rejoin(job, action.attempt, *lost)
        except SubmitRefused as refusal:
            await self._record(ev.RejoinRefused(self._now(), action.attempt, str(refusal)))
        else:
            await self._record(ev.AttemptSubmitted(self._now(), action.attempt, job.name, others or None))

    async def _delete(self, action: Delete) -> None:
        await self._unwatch()
        if action.grace_seconds and self.state.attempt.cause is Cause.FAILURE:
            await self._order(action.attempt, reports.Orders(failed=True))
        await self._engine.delete(self._job_of(action.attempt), action.grace_seconds)
        await self._look_around()  # agents may have reported failed saves
        await self._look_for_checkpoint()
        await self._hear_again()
        await self._record(ev.AttemptGone(self._now(), action.attempt, self._progress))

    async def _order(self, attempt: int, orders: reports.Orders) -> None:
        await asyncio.to_thread(reports.write_orders, self._store, attempt, orders)

    def _job_of(self, attempt: int) -> Job:
        return job_of(self._store.uri, self.state, attempt, self._engine)

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _wait(self, until: float | None = None) -> None:
        """Wait for a worker to change, or for the next look around, but not beyond `until`."""
        await self._watch_attempt()
        seconds = self._poll_seconds
        if self._failed_since is not None:
            seconds = min(seconds, max(ALONE_SECONDS, (time.monotonic() - self._failed_since) / 10))
        times = [time for time in (until, self.state.deadline_at) if time is not None]
        seconds = max(0.0, min([seconds, *(time - self._now() for time in times)]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        woken = self._wake.is_set()
        self._wake.clear()
        if not woken or self._has_news or self._failed_since is not None:
            # Requests and reports first: they may hold the cause.
            await self._look_around()
        if self._job is not None and self._watching.attempt == self.state.attempt.number:
            await self._tell_waiting(self._job)
            held, job_of = self._waits.held_seconds(self._job), self._job_of
            news = self._scaling.news(lambda: self.state, self._progress, self._job, held, job_of)
            async for events in news:
                await self._record(*events)
            await self._judge(self._job)

    @property
    def _has_news(self) -> bool:
        """Whether the engine sees agents that stand by, but the reports why have not been read yet."""
        heard = {worker.name for worker in self.state.attempt.failed}
        return self._job is not None and any(w.standby and w.name not in heard for w in self._job.workers)

    async def _tell_waiting(self, job: JobStatus) -> None:
        """Report what workers wait for when it has changed. Not journaled, because nothing is decided by it."""
        if self.state.attempt.phase is Phase.LIVE and self._waits.news(job):
            self._observer.on_waiting(self.state, job)
            await self._publish()

    async def _judge(self, job: JobStatus) -> None:
        """Record that the attempt is over, once its workers have reported why."""
        number = self.state.attempt.number
        if self.state.attempt.phase is not Phase.LIVE:
            return
        job = job.told(self.state.attempt.failed)
        training = job.among(self.state.attempt.members)
        if job.failed:
            self._failed_since = self._failed_since or time.monotonic()
            if time.monotonic() - self._failed_since < settle_time(job, training, self.state, self._progress):
                return
        if job.failed or training.succeeded:
            await self._hear_again()
            await self._look_for_checkpoint()
            await self._record(ev.WorkersEnded(self._now(), number, job, self._progress))

    async def _look_around(self) -> None:
        """Read requests, reports, checkpoints, the clock, and what other controllers have written."""
        while (found := await self._look()).events:
            await self._take_over(found.events)
            if self.state.ended:
                return
        for request in found.requests:
            if request.kind == "save" and self.state.attempt.phase in (Phase.SUBMITTING, Phase.ENDING):
                continue  # until a controller can
            if not await self._record(*events_of(request, self._now())):
                continue  # the next look finds it again
            await asyncio.to_thread(self._mailbox.done, request)
            self._wake.set()  # a worker may have failed
        if self.state.attempt.phase is Phase.LIVE:
            await self._hear(found.progress)
            await self._note_checkpoints(found.steps)
        await self._record(*await with_stacks(self._by_the_clock, self._store, self.state, self._hear_again))

    async def _look(self) -> Polled:
        return await asyncio.to_thread(poll, self._store, self._journal, self._seq, self._mailbox, self.state)

    def _by_the_clock(self) -> list[Event]:
        now = self._now()
        late = overdue(self.state, self._progress, now, self._waits.last_at(self._job, now))
        return [*recovered(self.state, self._progress, now), *late]

    async def _hear_again(self) -> None:
        number = self.state.attempt.number
        await self._hear(await asyncio.to_thread(reports.read_progress, self._store, number))

    async def _hear(self, progress: Progress | None) -> None:
        if progress != self._progress:
            self._progress = progress
            if progress is not None:
                if (ranks := self._lagging.news(progress)) is not None:
                    self._observer.on_lagging(self.state, progress, ranks)
                await self._observer.on_progress(self.state, progress)
        self._scaling.autoscaler.hear(self.state, self._progress)
        await self._observer.on_look(self.state, self._progress)

    async def _look_for_checkpoint(self) -> None:
        await self._note_checkpoints(await asyncio.to_thread(new_checkpoints, self._store, self.state))

    async def _note_checkpoints(self, steps: Sequence[int]) -> None:
        for step in steps:
            number = self.state.attempt.number
            event = ev.CheckpointCommitted(self._now(), number, step, layout.manifest(step))
            if not await self._record(event):  # the list may be out of date
                return

    async def _watch_attempt(self) -> None:
        attempt = self.state.attempt
        live = attempt.phase is Phase.LIVE
        if live and self._watching.watches(attempt.number):
            return
        await self._unwatch()
        if live:
            self._progress = None
            self._watching.begin(attempt.number, self._job_of(attempt.number), self._longest_pause)

    async def _unwatch(self) -> None:
        await self._scaling.end()
        await self._watching.end()
        self._failed_since = None
        self._waits = Waits()

    # -- journal -------------------------------------------------------------------------------------------------

    async def _record(self, *events: Event) -> bool:
        """Append the events that say something new. False: another controller was faster, and its events were read."""
        for event in events:
            state = evolve(self.state, event)
            if state == self.state:
                continue
            if not await asyncio.to_thread(self._journal.append, self._seq, event):
                await self._catch_up()
                return False
            await self._apply(event, state)
            await self._publish()
        return True

    async def _catch_up(self) -> None:
        """Read the journal from the last known event on."""
        await self._take_over(await asyncio.to_thread(self._journal.read, self._seq))

    async def _take_over(self, events: Iterable[Event]) -> None:
        for event in events:
            await self._apply(event, create(event) if self._state is None else evolve(self._state, event))

    async def _apply(self, event: Event, state: RunState) -> None:
        before, self._state = self._state, state
        self._seq += 1
        self._observer.on_event(event, before, state)

    async def _publish(self) -> None:
        """Write the status document, for readers that do not read the journal."""
        async with self._publishing:
            wait, placement = (self._job.wait, placement_of(self._job)) if self._job else (None, [])
            told, slow = self._progress, self._lagging.reported
            plain = document(self._store.uri, self.state, told, self._now(), wait, placement, slow)
            self._published_at = time.monotonic()
            await asyncio.to_thread(reports.write_status, self._store, plain)
            self._observer.on_published(self.state, self._progress)
