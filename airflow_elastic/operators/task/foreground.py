"""Drive a run inside a worker of Airflow, for `deferrable=False`."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_elastic.control.observer import Observers
from airflow_elastic.control.runs import Run
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.triggers.callbacks import CallbackObserver, names_of
from airflow_elastic.triggers.driving import drive
from airflow_elastic.triggers.metrics import MetricsObserver
from airflow_elastic.triggers.observer import TaskObserver
from airflow_elastic.triggers.task import xcom_pusher

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.triggers.observer import Log

#: Seconds that `on_kill` waits. When it has returned, Airflow kills the worker's process within about five seconds.
KILL_SECONDS = 4.0


class Foreground:
    """Drives a run in a thread of its own, which goes on while Airflow interrupts the main thread.

    Airflow ends a task by calling `on_kill` inside a signal handler, which interrupts the main thread. A few seconds
    later it kills the process, without running any `finally`. So the main thread only waits.

    Args:
        hook: opens the run and its engine.
        run: the run.
        ti: the task instance.
        log: the task's log.
        poll_seconds: seconds between two looks for requests, reports and checkpoints.
        callbacks: callbacks of the task, as `plain_callbacks` gives them, by their names. Default: none.
    """

    def __init__(
        self,
        hook: ElasticHook,
        run: Run,
        ti: Any,
        log: Log,
        poll_seconds: float,
        callbacks: Mapping[str, Any] | None = None,
    ) -> None:
        self._hook, self._run, self._owner = hook, run, str(ti.id)
        self._observer = TaskObserver(log, run.store, xcom_pusher(ti))
        self._calls = CallbackObserver(run.store, callbacks or {}, names_of(ti), log)
        self._observers = Observers(self._observer, self._calls, MetricsObserver.of(ti))
        self._log, self._poll_seconds = log, poll_seconds
        self._over = False
        self._state: RunState | None = None
        self._error: BaseException | None = None
        # From the context, Airflow knows to which task log lines and SDK calls belong.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._work), name="elastic", daemon=True)

    def drive(self) -> RunState:
        """Drive the run to its end. If Airflow interrupts this (a timeout, for instance), the run is ended.

        Raises:
            InvalidInput: the run was removed.
        """
        self._thread.start()
        try:
            self._wait(None)
        except BaseException as interruption:
            self.stop(
                f"Airflow: the task was interrupted ({type(interruption).__name__})",
                seconds=self._run.state.spec.health.grace_seconds + 30.0,
            )
            raise
        if self._error is not None:
            raise self._error
        if self._state is None:
            raise RuntimeError("the run was not driven to its end")
        return self._state

    def stop(self, by: str, *, seconds: float = KILL_SECONDS) -> bool:
        """Ask the run to save and end, and wait for it. Returns whether it has ended in time.

        If it has not, its workers already have the request: they save, and end by themselves.

        Args:
            by: who asks; the run's journal keeps this text.
            seconds: how long to wait. Default: 4.
        """
        if self._over:
            return True
        # In a thread: this may run inside a signal handler, which must not take a lock.
        asking = threading.Thread(target=self._ask, args=(by,), daemon=True)
        asking.start()
        return self._wait(seconds)

    def _wait(self, seconds: float | None) -> bool:
        """Wait for the end of the run. Returns False if `seconds` have passed before.

        It polls. If an exception of a signal handler interrupts `Thread.join`, Python 3.11 takes the thread for dead.
        Other primitives have a lock, and the interrupted code may hold it.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._over:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def _ask(self, by: str) -> None:
        try:
            self._run.ask_stop(by=by, owner=self._owner)
        except ElasticError as error:
            self._log.warning("%s", f"the run could not be asked to end: {error}")

    def _work(self) -> None:
        try:
            self._state = asyncio.run(self._drive())
        except BaseException as error:
            self._error = error
        finally:
            self._over = True

    async def _drive(self) -> RunState:
        state = await drive(
            self._hook,
            self._run.store.uri,
            log=self._log,
            poll_seconds=min(self._poll_seconds, 0.5),  # a request to stop must be found before the kill
            observer=self._observers,
        )
        await asyncio.gather(self._observer.finish(), self._calls.finish())
        return state
