"""What triggers for an AssetWatcher share: they fire for each new number, once, and note the newest one."""

from __future__ import annotations

import asyncio
import hashlib
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.triggers.json_kwargs import require_json

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: After so many seconds Airflow has an event in its database, and has started a DAG for it. Only then the trigger notes
#: that it has fired it. Airflow delivers an event that comes earlier only together with the one after it.
SETTLE_SECONDS = 5.0

#: The beginning of the name of the note in the asset's state store.
_NOTE = "airflow_elastic_"


class Watcher(BaseEventTrigger):
    """Fires an event for each new number: a step, or the number of a promotion.

    The newest number that was fired is kept in the state store of the watched asset, so a restarted triggerer goes on
    from there.

    Args:
        place: the name of the argument that says what is watched, and its value, a URI.
        existing: also fire for what is there when the trigger begins to watch.
        elastic_conn_id: see ElasticTrainOperator.
        aws_conn_id: see ElasticTrainOperator.
        poll_seconds: the time between two looks, seconds.
    """

    def __init__(
        self,
        place: tuple[str, str],
        existing: bool,
        elastic_conn_id: str,
        aws_conn_id: str | None,
        poll_seconds: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        name, uri = place
        self._uri = uri
        self.kwargs: dict[str, Any] = {
            name: uri,
            "existing": existing,
            "elastic_conn_id": elastic_conn_id,
            "aws_conn_id": aws_conn_id,
            "poll_seconds": poll_seconds,
        }
        self._key = _NOTE + hashlib.sha256(uri.encode()).hexdigest()[:32]
        self._last: int | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names of connections, never their content."""
        return f"{type(self).__module__}.{type(self).__qualname__}", require_json(self.kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for ever. Raises InvalidInput if the URI is not valid."""
        given = self.kwargs
        store = await asyncio.to_thread(_open, self._uri, given["elastic_conn_id"], given["aws_conn_id"])
        while True:
            try:
                fired = await self._noted()
                break
            except (
                Exception
            ) as error:  # Airflow's API server may be away; to begin from now would lose events
                self.log.warning("%s", f"what was fired for {self._uri} is not known yet: {error}")
                await asyncio.sleep(given["poll_seconds"])
        if fired is None and given["existing"]:
            fired = -1
        while True:
            try:
                there = await asyncio.to_thread(self._numbers, store)
                newest = max(there, default=-1)
                # A run that goes on from an earlier checkpoint saves the later steps again.
                fired = newest if fired is None else min(fired, newest)
                for number in [one for one in there if one > fired]:
                    payload = await asyncio.to_thread(self._payload, store, number)
                    if payload is not None:
                        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                        await asyncio.sleep(SETTLE_SECONDS)
                    fired = number
                    await self._note(fired)
            except StoreError as error:
                self.log.warning("%s", f"{store.uri} cannot be read: {error}")
            if fired is not None:
                await self._note(fired)
            await asyncio.sleep(given["poll_seconds"])

    @abstractmethod
    def _numbers(self, store: Store) -> list[int]:
        """All numbers there are, oldest first."""

    @abstractmethod
    def _payload(self, store: Store, number: int) -> dict[str, Any] | None:
        """What the event says of one; None if it is gone already."""

    async def _noted(self) -> int | None:
        """The newest number that was fired, as an earlier triggerer has noted it."""
        state = self.asset_state_store
        if state is None:
            return None
        try:
            # Airflow 3.3.0 and 3.3.1 only have the blocking calls.
            if hasattr(state, "aget"):
                found = await state.aget(self._key)
            else:
                found = await asyncio.to_thread(state.get, self._key)
        except ValueError:
            self.log.warning(
                "%s",
                f"several assets watch {self._uri} with equal triggers, so nothing says after a restart which events "
                "were fired: give each trigger another poll_seconds",
            )
            self.asset_state_store = None
            return None
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    async def _note(self, fired: int) -> None:
        state = self.asset_state_store
        if state is None or fired == self._last:
            return
        try:
            if hasattr(state, "aset"):
                await state.aset(self._key, fired)
            else:
                await asyncio.to_thread(state.set, self._key, fired)
        except Exception as error:  # Airflow's API server may be away; the next look tries again
            self.log.warning(
                "%s", f"it could not be noted that the events of {self._uri} were fired: {error}"
            )
        else:
            self._last = fired


def _open(uri: str, elastic_conn_id: str, aws_conn_id: str | None) -> Store:
    return ElasticHook(elastic_conn_id, aws_conn_id=aws_conn_id).open_store(uri)
