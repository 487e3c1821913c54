"""What becomes of a run whose trigger was cancelled: it ends where nobody wants it any more, and goes on elsewhere.

Airflow cancels a trigger alike when a person marks the task, clears it or deletes its DAG run, and when another
triggerer has taken the trigger over. Only the task's state and the run's owner tell these apart:

- the task has a terminal state, or is gone: nobody waits for the run; it saves and ends.
- another try of the task owns the run: a clear, whose new try was faster than this. The run is its, and is left
  alone; but it is looked after for a while, as a task that is marked before its own trigger has started has nobody
  else who would end the run.
- somebody else owns the run: it is left alone.
- the task is deferred and the run still ours: another triggerer has it; the run is left alone.
- the task waits for a worker slot: a clear, whose new try has yet to begin. It is given some time to take the run
  over; after that the run saves and ends, and the new try goes on from there whenever it begins.

A task that is cleared while its DAG is paused keeps its trigger, and with it its run, until the DAG goes on.
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

#: A new try takes the run over within so many seconds, or the run ends.
TAKEOVER_SECONDS = 40.0

_LOOK_SECONDS = 2.0


async def end_if_abandoned(
    hook: ElasticHook,
    run_uri: str,
    owner: str,
    *,
    task: str,
    task_state: Callable[[], Awaitable[str | None]],
    log: Log,
    takeover_seconds: float = TAKEOVER_SECONDS,
) -> bool:
    """End the run if nobody wants it any more; returns whether this did.

    Args:
        hook: opens the run and its engine.
        run_uri: where the run lies.
        owner: the try whose trigger was cancelled.
        task: the task instance that it is a try of, as `task_key` has it.
        task_state: asks Airflow for the state of that task; GONE where there is no such task.
        log: the task's log.
        takeover_seconds: how long a new try has to take the run over, and its own trigger to start.
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
                return False  # by another task altogether
            state = await task_state()
        except RunMissing:
            return False
        except Exception as error:  # whatever the SDK or the storage raises: it may work again in a moment
            if late:
                log.warning(
                    "%s", f"nobody can tell whether {run_uri} is still wanted ({error}): left running"
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
        await asyncio.sleep(_LOOK_SECONDS)


async def _end(hook: ElasticHook, run_uri: str, owner: str | None, why: str, log: Log) -> bool:
    log.info("%s", f"{why}: {run_uri} saves and ends")
    try:
        ended = await stop(hook, run_uri, by=why, owner=owner, log=log)
    except (ElasticError, TimeoutError) as error:
        log.warning("%s", f"{run_uri} could not be ended: {error}; `airflow-elastic stop` does it by hand")
        return False
    return ended is not None
