"""What triggers for an AssetWatcher share: they fire for each new number, once, and note the newest one."""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.triggers.assets.marks import Mark, Pace, mark_of
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
        place: a URI: what is watched.
        given: all arguments of the subclass; `existing`, `elastic_conn_id`, `aws_conn_id` and `poll_seconds` are among
            them.
        several: whether there are several runs below the URI. The note is a mapping then.
        every: fire for every N-th number.
    """

    def __init__(
        self, place: str, given: Mapping[str, Any], *, several: bool = False, every: int = 1
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._place, self._several, self._every = place, several, every
        self.kwargs: dict[str, Any] = dict(given)
        noted = f"{place}/*" if several else place
        self._key = _NOTE + hashlib.sha256(noted.encode()).hexdigest()[:32]
        self._last: Any = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments: names of connections, never their content."""
        return f"{type(self).__module__}.{type(self).__qualname__}", require_json(self.kwargs)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for ever. Raises InvalidInput if the URI is not valid."""
        root = await asyncio.to_thread(self._open)
        marks = await self._known()
        if marks is None:
            marks = {} if self.kwargs["existing"] else await self._begin(root)
            await self._note(marks)
        paces: dict[str, Pace] = {}
        while True:
            try:
                stores = await asyncio.to_thread(self._stores, root)
            except StoreError as error:
                self.log.warning("%s", f"{root.uri} cannot be read: {error}")
                stores = {}
            for name, store in stores.items():
                now = time.monotonic()
                pace = paces.setdefault(name, Pace(self.kwargs["poll_seconds"], now))
                if self._several and not pace.is_due(now):
                    continue
                pace.looked_at, before = now, marks.get(name)
                try:
                    async for mark, payload in self._new(store, before or Mark()):
                        pace.changed_at = now
                        if payload is not None:
                            yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
                            await asyncio.sleep(SETTLE_SECONDS)
                        marks[name] = mark
                        await self._note(marks)
                except StoreError as error:
                    self.log.warning("%s", f"{store.uri} cannot be read: {error}")
            if stores:  # else the storage may be out of reach
                marks = {name: mark for name, mark in marks.items() if name in stores}
            await self._note(marks)
            await asyncio.sleep(self.kwargs["poll_seconds"])

    async def _new(self, store: Store, mark: Mark) -> AsyncIterator[tuple[Mark, dict[str, Any] | None]]:
        """The marks to come to, one after the other, each with the payload of its event, if it has one."""
        there = await asyncio.to_thread(self._numbers, store)
        back = mark.back_to(max(there, default=-1))
        if back != mark:
            yield back, None
        for number, fires, after in back.passing(there, self._every):
            yield after, await asyncio.to_thread(self._payload, store, number) if fires else None

    async def _begin(self, root: Store) -> dict[str, Mark]:
        """The marks of all that is there already."""
        while True:
            try:
                stores = await asyncio.to_thread(self._stores, root)
                there = [
                    (name, await asyncio.to_thread(self._numbers, store)) for name, store in stores.items()
                ]
                return {name: Mark(max(numbers, default=-1)) for name, numbers in there}
            except StoreError as error:
                self.log.warning("%s", f"{root.uri} cannot be read: {error}")
                await asyncio.sleep(self.kwargs["poll_seconds"])

    def _open(self) -> Store:
        """The store at what is watched."""
        return self._hook().open_store(self._place)

    def _hook(self) -> ElasticHook:
        return ElasticHook(self.kwargs["elastic_conn_id"], aws_conn_id=self.kwargs["aws_conn_id"])

    def _stores(self, root: Store) -> Mapping[str, Store]:
        """The runs or models to look at, by a short name."""
        return {"": root}

    @abstractmethod
    def _numbers(self, store: Store) -> list[int]:
        """All numbers there are, oldest first."""

    @abstractmethod
    def _payload(self, store: Store, number: int) -> dict[str, Any] | None:
        """What the event says of one; None if it is gone already."""

    # -- the note --------------------------------------------------------------------------------------------

    async def _known(self) -> dict[str, Mark] | None:
        """The marks that an earlier triggerer has noted. None: there is no note."""
        while True:
            try:
                found = await self._noted()
                break
            except (
                Exception
            ) as error:  # Airflow's API server may be away; to begin from now would lose events
                self.log.warning("%s", f"what was fired for {self._place} is not known yet: {error}")
                await asyncio.sleep(self.kwargs["poll_seconds"])
        by_name = found if self._several else {"": found}
        if not isinstance(by_name, dict):
            return None
        marks = {str(name): mark for name, one in by_name.items() if (mark := mark_of(one)) is not None}
        return marks if marks or self._several else None

    async def _noted(self) -> Any:
        state = self.asset_state_store
        if state is None:
            return None
        try:
            # Airflow 3.3.0 and 3.3.1 only have the blocking calls.
            if hasattr(state, "aget"):
                return await state.aget(self._key)
            return await asyncio.to_thread(state.get, self._key)
        except ValueError:
            self.log.warning(
                "%s",
                f"several assets watch {self._place} with equal triggers, so nothing says after a restart which "
                "events were fired: give each trigger another poll_seconds",
            )
            self.asset_state_store = None
            return None

    async def _note(self, marks: Mapping[str, Mark]) -> None:
        state, plain = self.asset_state_store, {name: mark.plain() for name, mark in marks.items()}
        noted: Any = plain if self._several else plain.get("")
        if state is None or noted is None or noted == self._last:
            return
        try:
            if hasattr(state, "aset"):
                await state.aset(self._key, noted)
            else:
                await asyncio.to_thread(state.set, self._key, noted)
        except Exception as error:  # Airflow's API server may be away; the next look tries again
            self.log.warning(
                "%s", f"it could not be noted that the events of {self._place} were fired: {error}"
            )
        else:
            self._last = noted
