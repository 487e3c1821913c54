"""Runs a trigger of an AssetWatcher as a triggerer does, with the state store that an asset has."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.machine.patience import PATIENCE_SECONDS


class State(dict[str, Any]):
    """An asset's state store, as far as triggers use it."""

    async def aget(self, key: str) -> Any:
        return self.get(key)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = value


class Triggerer:
    """Runs a trigger until it is killed."""

    def __init__(self, trigger: Any, state: State | None) -> None:
        path, kwargs = trigger.serialize()
        assert path.endswith(type(trigger).__name__)
        self.trigger = type(trigger)(**kwargs)
        self.trigger.asset_state_store = state
        self.events: list[dict[str, Any]] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self.trigger.run():
            self.events.append(event.payload)

    async def until(self, number: int, state: State | None = None, noted: int | None = None) -> None:
        """Wait for so many events; and until the newest number is noted."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.events) < number or (state is not None and noted not in state.values()):
                assert not self._task.done(), self._task
                await asyncio.sleep(0.01)

    async def until_noted(self, wanted: list[Any]) -> None:
        """Wait until the values of the note are these, sorted; those of several runs are in a mapping."""

        def values() -> list[Any]:
            found = [*(self.trigger.asset_state_store or {}).values()]
            values = [*found[0].values()] if found and isinstance(found[0], dict) else found
            return sorted(values, key=str)

        async with asyncio.timeout(PATIENCE_SECONDS):
            while values() != sorted(wanted, key=str):
                assert not self._task.done(), self._task
                await asyncio.sleep(0.01)

    async def kill(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
