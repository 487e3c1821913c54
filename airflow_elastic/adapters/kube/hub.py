"""One watch for any number of runs: everything of one kind in one namespace, kept in memory, handed out by key.

Whoever follows a key gets full snapshots, so that late comers miss nothing and nobody has to fold events. Behind it is
one LIST, then one WATCH after another, each going on from where the last one ended; a watch that cannot go on (410)
lists anew. While the API server is away the last snapshot stands: an outage is no news of anything.

Hubs are shared by event loop and access, and end by themselves when nobody has used them for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_elastic.adapters.kube.client import Access, Client, connect
from airflow_elastic.adapters.kube.errors import Gone, KubeError
from airflow_elastic.adapters.kube.resources import Resource

log = logging.getLogger(__name__)

#: A watch is renewed after so long, give or take half of it: renewals of many processes shall not meet.
WATCH_SECONDS = 400

#: Whoever follows is told of trouble that lasts longer than this.
TROUBLE_SECONDS = 10.0

#: A hub that nobody uses ends after so long.
LINGER_SECONDS = 20.0

_LONGEST_PAUSE = 15.0


@dataclass(frozen=True, slots=True)
class Query:
    """What a collection holds.

    Attributes:
        resource: the kind of objects.
        namespace: where.
        labels: only objects with these, as a label selector.
        key: the label whose value is the key that objects are handed out by.
        slim: keeps of an object what matters; there may be many.
    """

    resource: Resource
    namespace: str
    labels: str
    key: str
    slim: Callable[[dict[str, Any]], dict[str, Any]]


class Collection:
    """The objects of one query, as they are now."""

    def __init__(self, client: Client, query: Query) -> None:
        self._client, self._query = client, query
        self._objects: dict[str, dict[str, dict[str, Any]]] = {}
        self._followers: dict[str, set[asyncio.Event]] = {}
        self._synced = False
        self._error: KubeError | None = None
        self._error_since = 0.0
        self._task = asyncio.create_task(self._work(), name=f"watch {query.resource.full_name}")

    def objects(self, key: str) -> list[dict[str, Any]]:
        """The objects of a key, by name.

        Raises:
            KubeError: nothing is known yet and cannot be learnt, or the server has been away for a while.
        """
        final = self._error is not None and self._error.is_final
        if self._error and (final or time.monotonic() - self._error_since > TROUBLE_SECONDS):
            raise self._error
        return [found for _, found in sorted(self._objects.get(key, {}).items())]

    @property
    def ready(self) -> bool:
        """Whether `objects` has an answer, or an error, rather than having to be waited for."""
        return self._synced or self._error is not None

    def follow(self, key: str, changed: asyncio.Event) -> None:
        """Set `changed` at each change of the key, and when the collection comes into or out of trouble."""
        self._followers.setdefault(key, set()).add(changed)

    def unfollow(self, key: str, changed: asyncio.Event) -> None:
        """Stop doing so."""
        followers = self._followers.get(key, set())
        followers.discard(changed)
        if not followers:
            self._followers.pop(key, None)

    @property
    def idle(self) -> bool:
        """Whether nobody follows anything."""
        return not self._followers

    async def close(self) -> None:
        """End the watch."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _work(self) -> None:
        query, version, failures = self._query, None, 0
        while True:
            try:
                if version is None:
                    items, version = await self._client.list(
                        query.resource, query.namespace, labels=query.labels
                    )
                    self._replace(items)
                self._well()
                seconds = round(WATCH_SECONDS * random.uniform(0.5, 1.5))
                events = self._client.watch(
                    query.resource, query.namespace, labels=query.labels, version=version, seconds=seconds
                )
                async for event in events:
                    version, failures = event["object"]["metadata"]["resourceVersion"], 0
                    self._apply(event)
            except Gone:
                version = None
            except KubeError as error:
                failures += 1
                self._in_trouble(error)
                await asyncio.sleep(
                    min(_LONGEST_PAUSE, 0.1 * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)
                )

    def _apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "BOOKMARK":
            return
        found = event["object"]
        key, name = self._key(found), found["metadata"]["name"]
        if event["type"] == "DELETED":
            self._objects.get(key, {}).pop(name, None)
            if not self._objects.get(key):
                self._objects.pop(key, None)
        else:
            self._objects.setdefault(key, {})[name] = self._query.slim(found)
        self._wake(key)

    def _replace(self, items: list[dict[str, Any]]) -> None:
        self._objects = {}
        for found in items:
            self._objects.setdefault(self._key(found), {})[found["metadata"]["name"]] = self._query.slim(
                found
            )
        self._synced = True
        self._wake_all()

    def _key(self, found: dict[str, Any]) -> str:
        labels: Mapping[str, str] = found["metadata"].get("labels") or {}
        return labels.get(self._query.key, "")

    def _well(self) -> None:
        if self._error is not None:
            log.info("watching %s goes on", self._query.resource.full_name)
            self._error = None
            self._wake_all()

    def _in_trouble(self, error: KubeError) -> None:
        if self._error is None:
            self._error_since = time.monotonic()
            asyncio.get_running_loop().call_later(TROUBLE_SECONDS + 0.1, self._wake_all)
        self._error = error
        if not self._synced or error.is_final:
            self._wake_all()

    def _wake(self, key: str) -> None:
        for follower in self._followers.get(key, ()):
            follower.set()

    def _wake_all(self) -> None:
        for key in self._followers:
            self._wake(key)


class Hub:
    """One connection, and the collections that are followed over it. Get it from `hub`."""

    def __init__(self, access: Access, client: Client) -> None:
        self.client = client
        self._access = access
        self._collections: dict[Query, Collection] = {}
        self._users = 0
        self._left = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(), name=f"hub {access!r}")

    async def follow(self, key: str, *queries: Query) -> AsyncIterator[tuple[list[dict[str, Any]], ...]]:
        """The objects of a key, one list a query: at once, and after each change.

        Raises:
            KubeError: a collection has been in trouble for TROUBLE_SECONDS, or cannot be had at all.
        """
        changed = asyncio.Event()
        collections = [self._collection(query) for query in queries]
        for collection in collections:
            collection.follow(key, changed)
        try:
            while True:
                if all(collection.ready for collection in collections):
                    yield tuple(collection.objects(key) for collection in collections)
                await changed.wait()
                changed.clear()
        finally:
            for collection in collections:
                collection.unfollow(key, changed)

    def _collection(self, query: Query) -> Collection:
        if query not in self._collections:
            self._collections[query] = Collection(self.client, query)
        return self._collections[query]

    async def _keep(self) -> None:
        """End when nobody has used this for a while, or with the event loop."""
        try:
            while True:
                await self._left.wait()
                self._left.clear()
                await asyncio.sleep(LINGER_SECONDS)
                for query, collection in [*self._collections.items()]:
                    if collection.idle:
                        del self._collections[query]
                        await collection.close()
                if self._users == 0 and not self._left.is_set():
                    return
        finally:
            _hubs.pop((id(asyncio.get_running_loop()), self._access), None)
            for collection in self._collections.values():
                await collection.close()
            await self.client.close()

    @contextlib.contextmanager
    def using(self) -> Any:
        """Keep it from ending meanwhile."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.set()


_hubs: dict[tuple[int, Access], asyncio.Future[Hub]] = {}


@contextlib.asynccontextmanager
async def hub(access: Access) -> AsyncIterator[Hub]:
    """The hub of this event loop for a cluster.

    Raises:
        EngineError: there is no kubeconfig, or it cannot be used.
    """
    loop = asyncio.get_running_loop()
    place = (id(loop), access)
    future = _hubs.get(place)
    if future is None:
        future = _hubs[place] = loop.create_future()
        try:
            future.set_result(Hub(access, await connect(access)))
        except BaseException as error:
            _hubs.pop(place, None)
            if not isinstance(error, Exception):
                future.cancel()
                raise
            future.set_exception(error)
            future.exception()  # seen: whoever waits for it gets it too
            raise
    found = await asyncio.shield(future)
    with found.using():
        yield found
