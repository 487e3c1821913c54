"""Read and write the task instance of a trigger, through Airflow's task SDK."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom

T = TypeVar("T")

# Own threads: the SDK answers one call at a time, and a triggerer's first call takes seconds (minutes, under load).
# In the loop's default threads, the waiting calls would block the controllers' storage calls.
_threads = ThreadPoolExecutor(2, thread_name_prefix="elastic-sdk")

#: States in which no task waits for the run any more.
TERMINAL = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})

#: The state of a task instance that does not exist, because its DAG run was deleted.
GONE = "deleted"


def task_key(ti: Any) -> str:
    """`<dag>/<DAG run>/<task>/<map index>`, quoted; the same for all tries. The map index is -1 if it is not mapped.

    It is in the run's journal, where only tasks write.
    """
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
    return "/".join(quote(part, safe="") for part in parts)


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function of the SDK without blocking the event loop or its default threads."""
    work = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def task_state(ti: Any) -> str | None:
    """The current state of a task instance: None if it waits to be scheduled, GONE if it does not exist."""
    states: dict[str, dict[str, Any]] = await call(
        RuntimeTaskInstance.get_task_states,
        dag_id=ti.dag_id,
        task_ids=[ti.task_id],
        run_ids=[ti.run_id],
        map_index=ti.map_index,
    )
    key = ti.task_id if ti.map_index < 0 else f"{ti.task_id}_{ti.map_index}"
    found = states.get(ti.run_id, {})
    if key not in found:
        return GONE
    return None if found[key] is None else str(getattr(found[key], "value", found[key]))


def xcom_pusher(ti: Any) -> Callable[[str, Any], None]:
    """Return a function that stores an XCom of this task instance; the function blocks."""

    def push(key: str, value: Any) -> None:
        XCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)

    return push


def xcom_value(ti: Any, key: str) -> Any:
    """An XCom of this task instance, or None. Blocks."""
    return XCom.get_one(
        key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
    )
