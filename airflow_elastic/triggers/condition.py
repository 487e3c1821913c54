"""The trigger behind sensors, and behind operators that wait for a run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_elastic.core.conditions import Look, OutOfReach, from_plain
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.looks import RunReader, looks
from airflow_elastic.triggers.run import EARLIEST_EVENT_SECONDS


class ElasticRunConditionTrigger(BaseTrigger):
    """Fires `{"reached": …}` when a condition holds for a run, and `{"error": …, "ended": …}` when it never will.

    All triggers of one triggerer that wait for the same run share one look at it.

    Args:
        run_uri: where the run is or will be stored.
        condition: the condition, as `core.conditions.to_plain` gives it.
        elastic_conn_id: see ElasticHook.
        aws_conn_id: see ElasticHook.
        poll_seconds: the longest time between two looks at the run, seconds. Default: 30.
        connection_required: see `required` of ElasticHook. Default: False.
    """

    def __init__(
        self,
        run_uri: str,
        condition: Mapping[str, Any],
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 30.0,
        connection_required: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kwargs: dict[str, Any] = {
            "run_uri": run_uri,
            "condition": dict(condition),
            "elastic_conn_id": elastic_conn_id,
            "aws_conn_id": aws_conn_id,
            "poll_seconds": poll_seconds,
            "connection_required": connection_required,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names of connections, never their content."""
        return f"{__name__}.{ElasticRunConditionTrigger.__qualname__}", require_json(self.kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the condition holds, or never will, then fire once."""
        began = time.monotonic()
        try:
            payload: dict[str, Any] = {"reached": await self._wait()}
        except OutOfReach as error:
            payload = {"error": str(error), "ended": error.ended}
        except InvalidInput as error:
            payload = {"error": str(error), "ended": False}
        await asyncio.sleep(max(0.0, began + EARLIEST_EVENT_SECONDS - time.monotonic()))
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, Any]:
        given = self.kwargs
        condition = from_plain(given["condition"])
        uri, connections = (
            given["run_uri"],
            (
                given["elastic_conn_id"],
                given["aws_conn_id"],
                given["connection_required"],
            ),
        )
        open_reader = partial(_open, uri, *connections)
        before: Look | None = None
        found = looks((uri, *connections), open_reader, given["poll_seconds"], condition.reads)
        async with contextlib.aclosing(found):
            async for look in found:
                if isinstance(look, StoreError):  # the next look tries again: the sensor has a timeout
                    self.log.warning("%s", f"{uri} cannot be read: {look}")
                elif look is not None:
                    if (reached := condition.judge(look, before)) is not None:
                        return reached
                    before = look
        raise AssertionError("looks do not end")


def _open(uri: str, elastic_conn_id: str, aws_conn_id: str | None, required: bool) -> RunReader:
    hook = ElasticHook(elastic_conn_id, aws_conn_id=aws_conn_id, required=required)
    return RunReader(hook.open_store(uri))
