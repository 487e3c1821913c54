"""Our own task instance, asked from inside a trigger through Airflow's task SDK."""

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

# The SDK answers one call at a time, and the first call of a triggerer takes seconds (minutes, under load). In the
# loop's own few threads, calls that wait would keep the controllers' storage calls from being made.
_threads = ThreadPoolExecutor(2, thread_name_prefix="elastic-sdk")

#: States in which nobody waits for the task's work any more.
TERMINAL = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})

#: Said of a task instance that does not exist: its DAG run was deleted.
GONE = "deleted"


def task_key(ti: Any) -> str:
    """`<dag>/<DAG run>/<task>/<map index>`, quoted: the task instance, whichever its try; -1 where it is not mapped.

    Runs keep it in their journals, where only tasks write.
    """
    parts = (ti.dag_id, ti.run_id, ti.task_id, str(-1 if ti.map_index is None else ti.map_index))
    return "/".join(quote(part, safe="") for part in parts)


async def call(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call something of the SDK without holding up the loop, nor anything else that uses threads."""
    work = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def task_state(ti: Any) -> str | None:
    """The state of a task instance now; None where it waits to be scheduled, GONE where it does not exist."""
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
    """What stores XComs of this task instance; it blocks."""

    def push(key: str, value: Any) -> None:
        XCom.set(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)

    return push


def xcom_value(ti: Any, key: str) -> Any:
    """An XCom of this task instance, or None; it blocks."""
    return XCom.get_one(
        key=key, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index
    )
