"""Decide whether a run goes on after its trigger was cancelled: it ends if no task waits for it any more.

Airflow cancels a trigger when a person marks the task, clears it or deletes its DAG run. It also cancels a trigger
when another triggerer has taken it over. Only the task's state and the run's owner distinguish these cases:

- The task has a terminal state, or was deleted. Nobody waits for the run: it saves and ends.
- Another try of the task owns the run. The task was cleared, and its new try has already taken the run over. This
  module still watches the task for a while: if it is marked before its new trigger starts, nobody else ends the run.
- Another task owns the run. It is left alone.
- The task is deferred, and the owner has not changed. Another triggerer has the trigger, so the run is left alone.
- The task waits for a worker slot. It was cleared, and its new try has not begun. If the new try does not take the
  run over in time, the run saves and ends. The new try later goes on from there.

A task that is cleared while its DAG is paused keeps its trigger and its run until the DAG goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from airflow_elastic.control.runs import Run
from airflow_elastic.spec.errors import ElasticError, RunMissing
from airflow_elastic.triggers.driving import stop
from airflow_elastic.triggers.task import GONE, TERMINAL

if TYPE_CHECKING:
    from airflow_elastic.hooks import ElasticHook
    from airflow_elastic.triggers.observer import Log

#: Seconds that a new try has to take the run over before the run ends.
TAKEOVER_SECONDS = 40.0

#: Seconds between two questions to Airflow.
POLL_SECONDS = 2.0


async def end_if_abandoned(
    hook: ElasticHook,
    run_uri: str,
    owner: str,
    *,
    task: str,
    task_state: Callable[[], Awaitable[str | None]],
    log: Log,
    takeover_seconds: float = TAKEOVER_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> bool:
    """End the run if no task waits for it any more. Returns whether this call ended it.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run is stored.
        owner: the try whose trigger was cancelled.
        task: key of its task instance, from `task_key`.
        task_state: asks Airflow for the state of that task; GONE if there is no such task.
        log: the task's log.
        takeover_seconds: seconds that a new try has to take the run over and start its own trigger.
        poll_seconds: seconds between two questions to Airflow.
    """
    deadline = time.monotonic() + takeover_seconds
    store = await asyncio.to_thread(hook.open_store, run_uri)
    while True:
        late = time.monotonic() > deadline
        try:
            run = await asyncio.to_thread(lambda: Run(store).state)
            if run.ended:
                return False
            taken_over = run.owner != owner
            if taken_over and run.task != task:
                return False  # another task has it
            state = await task_state()
        except RunMissing:
            return False
        except Exception as error:  # any error of the SDK or the storage may be gone at the next look
            if late:
                log.warning(
                    "%s",
                    f"{run_uri} goes on: nobody can find out whether its task still waits for it ({error})",
                )
                return False
        else:
            if state in TERMINAL or state == GONE:
                return await _end(hook, run_uri, run.owner, f"Airflow: the task is {state}", log)
            if (taken_over and late) or (not taken_over and state == "deferred"):
                return False
            if late:
                why = f"Airflow: the task was cleared, and no new try came within {takeover_seconds:g} s"
                return await _end(hook, run_uri, owner, why, log)
        await asyncio.sleep(poll_seconds)


async def _end(hook: ElasticHook, run_uri: str, owner: str | None, why: str, log: Log) -> bool:
    log.info("%s", f"{why}: {run_uri} saves and ends")
    try:
        # Nobody else drives it from here on: a cluster or storage that cannot be reached now may be there in an hour.
        ended = await stop(hook, run_uri, by=why, owner=owner, log=log, patient=True)
    except ElasticError as error:
        log.warning("%s", f"{run_uri} could not be ended: {error}; `airflow-elastic stop` does it by hand")
        return False
    return ended is not None
