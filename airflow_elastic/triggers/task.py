"""Read and write the task instance of a trigger, through Airflow's task SDK, and see its log delivered."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
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

#: Airflow's triggerer reads so much of its triggers' logs, at least, each time it reads a request of a trigger.
READ_BYTES = 4096

#: The socket between a trigger and the triggerer holds less than this: what was logged before has been read.
_UNREAD_BYTES = 256 << 10

#: What was logged so many seconds ago has been read.
_UNREAD_SECONDS = 30.0

#: Bytes that Airflow adds to a line: time, level, task.
_RECORD_BYTES = 400

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


class DeliveredLog:
    """A trigger's log that can wait until the triggerer has read it.

    The triggerer closes the log when it hears that the trigger has ended. Lines that it has not read by then are lost,
    and the last lines are those that one looks for.

    Args:
        log: the trigger's own log.
        now: seconds; for tests.
    """

    def __init__(self, log: Any, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._now = log, now
        self._unread: deque[tuple[float, int]] = deque()  # when, and how many bytes

    def info(self, event: str, *args: object) -> None:
        self._tell(self._log.info, event, args)

    def warning(self, event: str, *args: object) -> None:
        self._tell(self._log.warning, event, args)

    def error(self, event: str, *args: object) -> None:
        self._tell(self._log.error, event, args)

    async def delivered(self, ask: Callable[[], object]) -> None:
        """Ask something of Airflow until it has read all lines.

        Args:
            ask: asks something that costs little; blocks, and may raise.
        """
        since = self._now() - _UNREAD_SECONDS
        unread = min(_UNREAD_BYTES, sum(size for at, size in self._unread if at >= since))
        for _ in range(-(-unread // READ_BYTES)):
            try:
                await call(ask)
            except Exception:  # any error of Airflow: it was asked only so that it reads
                return
        self._unread.clear()

    def _tell(self, tell: Callable[..., Any], event: str, args: tuple[object, ...]) -> None:
        tell(event, *args)
        size = _RECORD_BYTES + len(event) + sum(len(one) for one in args if isinstance(one, str))
        now = self._now()
        while self._unread and self._unread[0][0] < now - _UNREAD_SECONDS:
            self._unread.popleft()
        self._unread.append((now, size))
