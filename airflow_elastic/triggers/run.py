"""The trigger that drives a run: it hosts the run's controller in Airflow's triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_elastic.control.observer import Observers
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.triggers import task
from airflow_elastic.triggers.abandoned import end_if_abandoned
from airflow_elastic.triggers.callbacks import CallbackObserver, names_of
from airflow_elastic.triggers.driving import drive, stop
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.metrics import MetricsObserver
from airflow_elastic.triggers.observer import PROGRESS_KEY, TaskObserver

#: Shortest time in seconds from a deferral to its event. After an earlier event the scheduler may still have the task
#: as queued, and fail it ("Executor reported success, but its state is queued").
EARLIEST_EVENT_SECONDS = 6.0

#: Tasks that go on after `on_kill`, which Airflow cancels after about a second. The loop keeps only weak references.
_ending: set[asyncio.Task[bool]] = set()


class ElasticRunTrigger(BaseTrigger):
    """Drives the run at a URI to its end, then fires `{"run_uri": …, "outcome": …}`.

    All its state is in the run's journal, so it may be killed at any point. Training then goes on, and the next
    triggerer drives the run from there.

    Args:
        run_uri: where the run is stored.
        owner: id of the task instance. The trigger ends the run only while the journal names this owner.
        elastic_conn_id: see ElasticHook.
        aws_conn_id: see ElasticHook.
        poll_seconds: seconds between two looks for requests, reports and checkpoints. Default: 2.
        callbacks: callbacks of the task, as `plain_callbacks` gives them, by their names. Default: none.
        connection_required: see `required` of ElasticHook. Default: False.
    """

    def __init__(
        self,
        run_uri: str,
        owner: str,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 2.0,
        callbacks: Mapping[str, Any] | None = None,
        connection_required: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run_uri = run_uri
        self.owner = owner
        self.elastic_conn_id = elastic_conn_id
        self.aws_conn_id = aws_conn_id
        self.poll_seconds = poll_seconds
        self.callbacks = dict(callbacks or {})
        self.connection_required = connection_required

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments. Airflow's database stores them as plain text: no content of connections."""
        names = (
            *("run_uri", "owner", "elastic_conn_id", "aws_conn_id", "poll_seconds", "callbacks"),
            "connection_required",
        )
        kwargs = require_json({name: getattr(self, name) for name in names})
        return f"{ElasticRunTrigger.__module__}.{ElasticRunTrigger.__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Drive the run, and fire once. Airflow logs the event unmasked, so no text of the script is in it."""
        began = time.monotonic()
        payload: dict[str, Any] = {"run_uri": self.run_uri}
        try:
            payload["outcome"] = await self._drive()
        except InvalidInput as error:
            payload["error"] = str(error)
        except asyncio.CancelledError:
            if (
                self.task_instance is None
            ):  # Ctrl-C in `dag.test()`: no other triggerer takes the trigger over
                await stop(
                    self._hook(), self.run_uri, by="the test was interrupted", owner=self.owner, log=self.log
                )
            raise
        await asyncio.sleep(max(0.0, began + EARLIEST_EVENT_SECONDS - time.monotonic()))
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _drive(self) -> str | None:
        hook, ti = self._hook(), self.task_instance
        store = await asyncio.to_thread(hook.open_store, self.run_uri)
        log = task.DeliveredLog(self.log)
        if ti is None:  # `dag.test()` and `airflow tasks test` run a trigger without a task instance
            observer = TaskObserver(log, store)
        else:
            observer = TaskObserver(log, store, task.xcom_pusher(ti), pushed=partial(task.xcom_value, ti))
        calls = CallbackObserver(store, self.callbacks, names_of(ti), log)
        observers = (observer, calls) if ti is None else (observer, calls, MetricsObserver.of(ti))
        state = await drive(
            hook,
            self.run_uri,
            log=log,
            poll_seconds=self.poll_seconds,
            observer=Observers(*observers),
        )
        await asyncio.gather(observer.finish(), calls.finish())
        if ti is not None:
            await log.delivered(partial(task.xcom_value, ti, PROGRESS_KEY))
        return state.outcome

    async def on_kill(self) -> None:
        """End the run if no task waits for it any more, in the background: Airflow waits about a second for this."""
        work = asyncio.create_task(self._end_if_abandoned())
        _ending.add(work)
        work.add_done_callback(_ending.discard)
        await asyncio.shield(work)

    async def _end_if_abandoned(self) -> bool:
        ti = self.task_instance
        return await end_if_abandoned(
            self._hook(),
            self.run_uri,
            self.owner,
            task=task.task_key(ti),
            task_state=lambda: task.task_state(ti),
            log=self.log,
        )

    def _hook(self) -> ElasticHook:
        return ElasticHook(
            self.elastic_conn_id, aws_conn_id=self.aws_conn_id, required=self.connection_required
        )
