"""Drive a run for a task, in the event loop of the triggerer or of a worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_elastic.control.controller import Controller
from airflow_elastic.control.runs import Run
from airflow_elastic.spec.errors import InvalidInput, StoreError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.control.observer import Observer
    from airflow_elastic.core.state import RunState
    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.triggers.observer import Log

_RETRY_SECONDS = 10.0

#: Seconds that `stop` waits, at most, beyond the run's own grace period.
STOP_SECONDS = 60.0


async def drive(
    hook: ElasticHook,
    run_uri: str,
    *,
    log: Log,
    poll_seconds: float,
    observer: Observer | None = None,
) -> RunState:
    """Drive a run to its end. While the storage cannot be reached, this waits and tries again without limit.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run is stored.
        log: the task's log.
        poll_seconds: seconds between two looks for requests, reports and checkpoints.
        observer: is called for each event and each look.

    Raises:
        InvalidInput: the run does not exist, or its engine is not installed here.
    """
    while True:
        try:
            store = await asyncio.to_thread(hook.open_store, run_uri)
            state = await asyncio.to_thread(_state, store)
            engine = await asyncio.to_thread(hook.engine, state.spec.engine, run_uri)
            controller = Controller(store, engine, observer=observer, poll_seconds=poll_seconds)
            return await controller.drive()
        except StoreError as error:
            log.warning("%s", f"{error}; trying again in {_RETRY_SECONDS:g} s")
            await asyncio.sleep(_RETRY_SECONDS)


def _state(store: Store) -> RunState:
    return Run(store).state


async def stop(
    hook: ElasticHook, run_uri: str, *, by: str, owner: str | None, log: Log, patient: bool = False
) -> RunState | None:
    """End a run: its workers save, and its job is removed. Returns None if another owner has it, or it does not exist.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run is stored.
        by: who asks; the run's journal keeps this text.
        owner: the run is ended only while this is its owner; None ends it in any case.
        log: the task's log.
        patient: wait for the end of the run however long it takes. Default: for STOP_SECONDS.

    Raises:
        StoreError: the storage cannot be reached.
        TimeoutError: the run has not ended in time; call `stop` again to go on.
    """
    store = await asyncio.to_thread(hook.open_store, run_uri)
    run = Run(store)
    try:
        state = await asyncio.to_thread(lambda: run.state)
        if state.ended or (owner is not None and state.owner != owner):
            return state if state.ended else None
        await asyncio.to_thread(lambda: run.ask_stop(by=by, owner=owner))
    except InvalidInput:  # the run has ended or was removed since the look above
        return None
    async with asyncio.timeout(None if patient else state.spec.health.grace_seconds + STOP_SECONDS):
        return await drive(hook, run_uri, log=log, poll_seconds=0.2)
