"""Driving a run on behalf of a task, wherever there is an event loop: in the triggerer, or in a worker."""

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


async def drive(
    hook: ElasticHook,
    run_uri: str,
    *,
    log: Log,
    poll_seconds: float,
    observer: Observer | None = None,
) -> RunState:
    """Carry a run on to its end. Storage out of reach is waited out, for as long as it takes.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run lies.
        log: the task's log.
        poll_seconds: how often requests, reports and checkpoints are looked for.
        observer: is told what happens.

    Raises:
        InvalidInput: there is no run (any more), or its engine is not installed here.
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
    hook: ElasticHook, run_uri: str, *, by: str, owner: str | None, log: Log, grace: float = 60.0
) -> RunState | None:
    """End a run: its workers save, then nothing of them is left. None where it already is another's, or is no more.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run lies.
        by: who asks, in words that the record of the run will show.
        owner: void unless this still owns the run.
        log: the task's log.
        grace: seconds beyond the run's own grace period that this may take.

    Raises:
        StoreError: the storage is out of reach.
        TimeoutError: it still had not ended; whoever asks next goes on.
    """
    store = await asyncio.to_thread(hook.open_store, run_uri)
    run = Run(store)
    try:
        state = await asyncio.to_thread(lambda: run.state)
        if state.ended or (owner is not None and state.owner != owner):
            return state if state.ended else None
        await asyncio.to_thread(lambda: run.ask_stop(by=by, owner=owner))
    except InvalidInput:  # it has ended in between, or has been removed
        return None
    async with asyncio.timeout(state.spec.health.grace_seconds + grace):
        return await drive(hook, run_uri, log=log, poll_seconds=0.2)
