"""The trigger behind ElasticRunSensor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.run import EARLIEST_EVENT_SECONDS
from airflow_elastic.triggers.target import OutOfReach, Target, reached


class ElasticRunReachedTrigger(BaseTrigger):
    """Fires `{"reached": …}` when a run has reached a target, and `{"error": …}` when it has ended before.

    Args:
        run_uri: where the run is or will be stored.
        state: see Target.
        step: see Target.
        checkpoint: see Target.
        elastic_conn_id: see ElasticHook.
        aws_conn_id: see ElasticHook.
        poll_seconds: seconds between two looks at the run. Default: 10.
    """

    def __init__(
        self,
        run_uri: str,
        state: str | None = None,
        step: int | None = None,
        checkpoint: int | bool | None = None,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        aws_conn_id: str | None = None,
        poll_seconds: float = 10.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kwargs: dict[str, Any] = {
            "run_uri": run_uri,
            "state": state,
            "step": step,
            "checkpoint": checkpoint,
            "elastic_conn_id": elastic_conn_id,
            "aws_conn_id": aws_conn_id,
            "poll_seconds": poll_seconds,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names of connections, never their content."""
        kwargs = require_json(self.kwargs)
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the run until it has reached the target or cannot reach it, then fire once."""
        began = time.monotonic()
        try:
            payload: dict[str, Any] = {"reached": await self._wait()}
        except (InvalidInput, OutOfReach) as error:
            payload = {"error": str(error)}
        await asyncio.sleep(max(0.0, began + EARLIEST_EVENT_SECONDS - time.monotonic()))
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, Any]:
        given = self.kwargs
        target = Target(given["state"], given["step"], given["checkpoint"])
        hook = ElasticHook(given["elastic_conn_id"], aws_conn_id=given["aws_conn_id"])
        store = await asyncio.to_thread(hook.open_store, given["run_uri"])
        while True:
            try:
                found = await asyncio.to_thread(reached, store, target)
            except StoreError as error:  # try again: the sensor has a timeout
                self.log.warning("%s", f"{given['run_uri']} cannot be read: {error}")
                found = None
            if found is not None:
                return found
            await asyncio.sleep(given["poll_seconds"])
