"""The trigger that waits until an engine has room for workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_elastic.engines.api import ROOM_LIMITS, MeasuresRoom, Room, engine_names
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import EngineError, InvalidInput, Problem, SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.triggers.json_kwargs import require_json
from airflow_elastic.triggers.looks import looks
from airflow_elastic.triggers.run import EARLIEST_EVENT_SECONDS


class RoomReader:
    """Measures the room for workers of one specification. Blocks.

    Args:
        hook: opens the engine.
        spec: its engine, its options and the resources of a worker count.
        limits: which limits to look at, of ROOM_LIMITS.
    """

    def __init__(self, hook: ElasticHook, spec: RunSpec, limits: Collection[str] = ROOM_LIMITS) -> None:
        self._hook, self._spec, self._limits = hook, spec, limits

    def look(self, reads: Iterable[str] = ()) -> Room:
        """The room now.

        Raises:
            InvalidInput: the engine cannot measure its room, or has no such queue or resource.
            EngineError: it cannot be found out for now.
        """
        engine = self._hook.engine(self._spec.engine)
        if not isinstance(engine, MeasuresRoom):
            there = ", ".join(engine_names())
            allowed = f"an engine that can measure its room, as those of airflow-elastic can ({there})"
            raise SpecError(Problem("engine", self._spec.engine, allowed))
        return asyncio.run(engine.room(self._spec, self._limits))


class ElasticCapacityTrigger(BaseTrigger):
    """Fires `{"reached": …}` when an engine has room for so many workers, and `{"error": …}` if it never can say.

    Triggers of one triggerer that wait for the same room share one look at it.

    Args:
        spec: the specification whose workers need room, in plain JSON.
        workers: for how many of them.
        limits: which limits to look at.
        elastic_conn_id: see ElasticHook.
        poll_seconds: the longest time between two looks, seconds. Default: 60.
        connection_required: see `required` of ElasticHook. Default: False.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        workers: int,
        limits: Collection[str] = ROOM_LIMITS,
        elastic_conn_id: str = ElasticHook.default_conn_name,
        poll_seconds: float = 60.0,
        connection_required: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kwargs: dict[str, Any] = {
            "spec": dict(spec),
            "workers": workers,
            "limits": list(limits),
            "elastic_conn_id": elastic_conn_id,
            "poll_seconds": poll_seconds,
            "connection_required": connection_required,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names of connections, never their content."""
        return f"{__name__}.{ElasticCapacityTrigger.__qualname__}", require_json(self.kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until there is room, then fire once."""
        began = time.monotonic()
        try:
            payload: dict[str, Any] = {"reached": await self._wait()}
        except InvalidInput as error:
            payload = {"error": str(error)}
        await asyncio.sleep(max(0.0, began + EARLIEST_EVENT_SECONDS - time.monotonic()))
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, Any]:
        given = self.kwargs
        key = "room", given["elastic_conn_id"], json.dumps([given["spec"], given["limits"]], sort_keys=True)
        last: tuple[int | None] | None = None
        found = looks(key, self._open, given["poll_seconds"])
        async with contextlib.aclosing(found):
            async for room in found:
                if isinstance(room, EngineError):  # the next look tries again: the sensor has a timeout
                    number, said = None, f"the room cannot be seen for now: {room}"
                elif (enough := has_room(room, given["workers"])) is not None:
                    return enough
                else:
                    number = room.workers
                    said = shortage(room, given["workers"])
                if last is None or number != last[0]:  # free memory alone changes with each look
                    self.log.info("%s", said)
                last = (number,)
        raise AssertionError("looks do not end")

    def _open(self) -> RoomReader:
        given = self.kwargs
        return RoomReader(
            ElasticHook(given["elastic_conn_id"], required=given["connection_required"]),
            RunSpec.from_dict(given["spec"]),
            given["limits"],
        )


def shortage(room: Room, workers: int) -> str:
    """Too little room, in words."""
    return f"room for {room.workers} of {workers} workers: {room}"


def has_room(room: Room, workers: int) -> dict[str, Any] | None:
    """`workers` and `limits` of the room as the sensor returns them; None if it is too small."""
    if room.workers is not None and room.workers < workers:
        return None
    limits = [{"name": one.name, "workers": one.workers, "text": one.text} for one in room.limits]
    return {"workers": room.workers, "limits": limits}
