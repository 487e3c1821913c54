"""Our own task instance, asked from inside a trigger through Airflow's task SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom

#: States in which nobody waits for the task's work any more.
TERMINAL = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})

#: Said of a task instance that does not exist: its DAG run was deleted.
GONE = "deleted"


async def task_state(ti: Any) -> str | None:
    """The state of a task instance now; None where it waits to be scheduled, GONE where it does not exist."""
    # In a thread: called on the loop it would hold up every other trigger of this triggerer.
    states: dict[str, dict[str, Any]] = await asyncio.to_thread(
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
