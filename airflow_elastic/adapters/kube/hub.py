"""One watch for any number of runs: all objects of a kind in a namespace, kept in memory, handed out by key.

Followers of a key get full snapshots, so that late ones miss nothing and none has to fold events. A hub makes one LIST,
and then one WATCH after another, each from the end of the last one. If a watch cannot go on (410), the hub lists again.
While the API server is out of reach the last snapshot stays: an outage says nothing about the objects.

Hubs are shared by event loop and access, and end by themselves when they have had no user for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_elastic.adapters.host.event_loop import end_task
from airflow_elastic.adapters.kube.access import Access
from airflow_elastic.adapters.kube.client import Client, connect
from airflow_elastic.adapters.kube.errors import Gone, KubeError
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.adapters.kube.shared_reads import SharedReads

log = logging.getLogger(__name__)

#: A watch is renewed after so long, plus or minus half of it, so that many processes do not renew at the same time.
WATCH_SECONDS = 400

#: An error that lasts longer than this is reported to followers.
TROUBLE_SECONDS = 10.0

#: A hub without users ends after so long.
LINGER_SECONDS = 20.0

#: A watch that lasted so long has worked, even if nothing happened meanwhile.
_STEADY_SECONDS = 5.0

#: After so many failures in a row the hub gives up the watch and lists again.
STUBBORN = 5

_LONGEST_PAUSE = 15.0


#: See `Query.key`.
OWN_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class Query:
    """Which objects a collection holds.

    Attributes:
        resource: the kind of objects.
        namespace: of the objects.
        labels: only objects with these, as a label selector.
        key: the label whose value is an object's key, by which objects are handed out. Empty: the key is the name of
            the object's owner. OWN_NAME: it is the object's own name.
        slim: reduces an object to the parts that matter, because there may be many objects.
    """

    resource: Resource
    namespace: str
    labels: str
    key: str
    slim: Callable[[dict[str, Any]], dict[str, Any]]


#: The kept part of an object, or why it cannot be read.
_Known = dict[str, Any] | KubeError


class Collection:
    """The objects of one query, as they are now."""

    def __init__(self, client: Client, query: Query) -> None:
        self._client, self._query = client, query
        self._objects: dict[str, dict[str, _Known]] = {}
        self._keys: dict[str, str] = {}  # of each object, by its name
        self._followers: dict[str, set[asyncio.Event]] = {}
        self._version: str | None = None  # from which the next watch goes on; None: list first
        self._synced = False
        self._failures = 0  # since the last answer
        self._error: KubeError | None = None
        self._told = False  # whether followers have got the error
        self._alarm: asyncio.TimerHandle | None = None
        self._task = asyncio.create_task(self._work(), name=f"watch {query.resource.full_name}")

    def objects(self, key: str) -> list[dict[str, Any]]:
        """The objects of a key, by name.

        Raises:
            KubeError: an object cannot be read, or the server has been out of reach for a while.
        """
        trouble = self._error if self._told else None
        found = [one for _, one in sorted(self._objects.get(key, {}).items())]
        trouble = trouble or next((one for one in found if isinstance(one, KubeError)), None)
        if trouble is not None:  # raised again and again, the same error would collect frames
            raise trouble.with_traceback(None)
        return [one for one in found if isinstance(one, dict)]

    @property
    def ready(self) -> bool:
        """Whether `objects` has an answer or an error, so that nobody has to wait."""
        return self._synced or self._told

    def follow(self, key: str, changed: asyncio.Event) -> None:
        """Set `changed` at each change of the key, and when an error begins or ends."""
        self._followers.setdefault(key, set()).add(changed)

    def unfollow(self, key: str, changed: asyncio.Event) -> None:
        """Stop doing so."""
        followers = self._followers.get(key, set())
        followers.discard(changed)
        if not followers:
            self._followers.pop(key, None)

    @property
    def idle(self) -> bool:
        """Whether there are no followers."""
        return not self._followers

    async def close(self) -> None:
        """End the watch."""
        if self._alarm is not None:
            self._alarm.cancel()
        await end_task(self._task)

    # -- list, watch, list -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while True:
            try:
                if self._version is None:
                    self._version = await self._list()
                await self._watch(self._version)
            except Gone:
                self._version = None
                self._failures += 1
                if self._failures == 1:
                    continue
            except KubeError as error:
                self._failures += 1
                self._in_trouble(error)
                if error.status and self._failures % STUBBORN == 0:
                    self._version = None
            except Exception as error:
                # An answer of an impossible form, or a bug of this module: followers must not wait forever.
                what = f"watch {self._query.resource.full_name}"
                log.exception("cannot %s", what)
                self._failures, self._version = self._failures + 1, None
                self._in_trouble(KubeError(f"cannot {what}: {type(error).__name__}: {error}"))
            if self._failures:
                pause = min(_LONGEST_PAUSE, 0.1 * 2.0 ** min(self._failures, 10))
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    async def _list(self) -> str:
        query = self._query
        items, version = await self._client.list(query.resource, query.namespace, labels=query.labels)
        self._replace(items)
        self._well()
        return version

    async def _watch(self, version: str) -> None:
        """Watch until the watch's time is up. A watch that a proxy ends at once counts as a failure."""
        query, loop = self._query, asyncio.get_running_loop()
        seconds = round(WATCH_SECONDS * random.uniform(0.5, 1.5))
        watch = self._client.watch(
            query.resource, query.namespace, labels=query.labels, version=version, seconds=seconds
        )
        async with watch as events:
            self._well()
            began = loop.time()
            try:
                async for event in events:
                    self._version = event["object"]["metadata"]["resourceVersion"]
                    self._failures = 0
                    self._apply(event)
            finally:
                if loop.time() - began > _STEADY_SECONDS:
                    self._failures = 0
        if self._version == version and loop.time() - began < _STEADY_SECONDS:
            self._failures += 1

    # -- what is known -----------------------------------------------------------------------------------------------

    def _apply(self, event: dict[str, Any]) -> None:
        if event["type"] == "BOOKMARK":
            return
        found = event["object"]
        name = found["metadata"]["name"]
        key, before = self._key(found), self._keys.get(name)
        if event["type"] == "DELETED":
            self._drop(name)
        else:
            if before != key:  # an operator may have changed labels
                self._drop(name)
            self._keys[name] = key
            self._objects.setdefault(key, {})[name] = self._slim(found)
        for changed in {key, key if before is None else before}:
            self._wake(changed)

    def _drop(self, name: str) -> None:
        key = self._keys.pop(name, None)
        if key is not None:
            del self._objects[key][name]
            if not self._objects[key]:
                del self._objects[key]

    def _replace(self, items: list[dict[str, Any]]) -> None:
        objects: dict[str, dict[str, _Known]] = {}
        for found in items:
            objects.setdefault(self._key(found), {})[found["metadata"]["name"]] = self._slim(found)
        self._objects = objects
        self._keys = {name: key for key, of_key in objects.items() for name in of_key}
        self._synced = True
        self._wake_all()

    def _key(self, found: dict[str, Any]) -> str:
        metadata = found["metadata"]
        if self._query.key == OWN_NAME:
            return str(metadata["name"])
        if not self._query.key:
            owners = metadata.get("ownerReferences") or ()
            return str(owners[0]["name"]) if owners else ""
        labels: Mapping[str, str] = metadata.get("labels") or {}
        return labels.get(self._query.key, "")

    def _slim(self, found: dict[str, Any]) -> _Known:
        """Reduce an object. One that cannot be read is an error only for its followers."""
        try:
            return self._query.slim(found)
        except Exception as error:
            what = f"{self._query.resource.full_name} {found['metadata']['name']}"
            log.exception("cannot read %s", what)
            return KubeError(f"cannot read {what}: {type(error).__name__}: {error}")

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _in_trouble(self, error: KubeError) -> None:
        if self._error is None:
            log.info("watching %s is interrupted: %s", self._query.resource.full_name, error)
            self._alarm = asyncio.get_running_loop().call_later(TROUBLE_SECONDS, self._tell)
        self._error = error
        if error.is_final:
            self._tell()

    def _tell(self) -> None:
        self._told = True
        self._wake_all()

    def _well(self) -> None:
        """The server has answered: with a list, or by beginning to watch."""
        if self._error is None:
            return
        log.info("watching %s goes on", self._query.resource.full_name)
        if self._alarm is not None:
            self._alarm.cancel()
        self._error, self._told, self._alarm = None, False, None
        self._wake_all()

    def _wake(self, key: str) -> None:
        for follower in self._followers.get(key, ()):
            follower.set()

    def _wake_all(self) -> None:
        for key in self._followers:
            self._wake(key)


class Hub:
    """One connection, and the collections that are followed over it. Get it from `hub`."""

    def __init__(self, access: Access, client: Client, hubs: Hubs) -> None:
        self.client, self.reads = client, SharedReads()
        self._access = access
        self._collections: dict[Query, Collection] = {}
        self._users = 0
        self._left = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep(hubs), name=f"hub {access!r}")

    async def follow(self, key: str, *queries: Query) -> AsyncIterator[tuple[list[dict[str, Any]], ...]]:
        """The objects of a key, one list a query: at once, and after each change.

        Raises:
            KubeError: a collection has had an error for TROUBLE_SECONDS, or cannot be listed at all.
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

    async def _keep(self, hubs: Hubs) -> None:
        """End after a while without users, or with the event loop."""
        try:
            while True:
                await asyncio.sleep(LINGER_SECONDS)
                for query, collection in [*self._collections.items()]:
                    if collection.idle:
                        del self._collections[query]
                        await collection.close()
                if self._users == 0 and not self._left.is_set():
                    return
                await self._left.wait()
                self._left.clear()
        finally:
            hubs.pop(self._access, None)
            await self.reads.close()
            for collection in self._collections.values():
                await collection.close()
            await self.client.close()

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keep the hub alive during the block."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left.set()


Hubs = dict[Access, "asyncio.Task[Hub]"]

_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hubs] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def hub(access: Access) -> AsyncIterator[Hub]:
    """The hub of this event loop for a cluster.

    Raises:
        EngineError: there is no kubeconfig, or it cannot be used.
    """
    hubs = _hubs.setdefault(asyncio.get_running_loop(), {})
    if access not in hubs:
        # A task of its own: the first caller may be cancelled, while others wait for it too.
        hubs[access] = asyncio.create_task(_open(access, hubs), name=f"connect {access!r}")
    found = await asyncio.shield(hubs[access])
    with found.using():
        yield found


async def _open(access: Access, hubs: Hubs) -> Hub:
    try:
        return Hub(access, await connect(access), hubs)
    except BaseException:
        hubs.pop(access, None)
        raise
