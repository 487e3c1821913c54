"""An API server in this process that keeps objects of any kind: names, label selectors, watches, merge patches.

It has no controllers and no nodes: what these would do, a test does. What it was asked is in `asked`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from airflow_elastic.adapters.kube import Access
from tests.support.kubernetes.kube_server import kubeconfig, listening, status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_elastic.adapters.kube.resources import Resource

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>.+))?"
)

Key = tuple[str, str, str]


@dataclass
class Objects:
    """See the module.

    Attributes:
        asked: method, kind, name and query of each request so far.
        logs: what containers have written, by pod and container.
    """

    asked: list[tuple[str, str, str | None, dict[str, str]]] = field(default_factory=list)
    logs: dict[tuple[str, str], bytes] = field(default_factory=dict)
    url: str = ""
    _kept: dict[Key, dict[str, dict[str, Any]]] = field(default_factory=dict)
    _history: list[tuple[int, Key, dict[str, Any]]] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _ends: bool = False

    @property
    def access(self) -> Access:
        """How to reach it."""
        return Access(content=json.dumps(kubeconfig(self.url)))

    # -- what tests do ---------------------------------------------------------------------------------------------

    def of(self, resource: Resource, namespace: str = "default") -> dict[str, dict[str, Any]]:
        """All objects of a kind, by name."""
        return self._kept.setdefault((resource.group, resource.plural, namespace), {})

    async def put(self, resource: Resource, body: dict[str, Any], namespace: str = "default") -> None:
        """Create or change an object, as its controller or its node does."""
        await self._put((resource.group, resource.plural, namespace), copy.deepcopy(body))

    # -- what it answers -------------------------------------------------------------------------------------------

    async def _put(self, key: Key, body: dict[str, Any]) -> None:
        kept = self._kept.setdefault(key, {})
        name = body["metadata"]["name"]
        known = kept.get(name, {"metadata": {"uid": uuid.uuid4().hex}})
        body["metadata"].setdefault("uid", known["metadata"]["uid"])
        body["metadata"].setdefault("creationTimestamp", "2026-01-01T10:00:00Z")
        kind = "MODIFIED" if name in kept else "ADDED"
        kept[name] = body
        await self._happen(key, kind, body)

    async def _happen(self, key: Key, kind: str, body: dict[str, Any]) -> None:
        async with self._changed:
            version = len(self._history) + 1
            body["metadata"]["resourceVersion"] = str(version)
            self._history.append((version, key, {"type": kind, "object": copy.deepcopy(body)}))
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        found = _PATH.fullmatch(request.path)
        if found is None:
            return status(404, "NotFound", "no such path")
        key = (found["group"] or "", found["plural"], found["namespace"])
        name, kept = found["name"], self._kept.setdefault(key, {})
        self.asked.append((request.method, found["plural"], name, dict(request.query)))
        if found["part"] == "log":
            return web.Response(body=self.logs.get((name, request.query["container"]), b""))
        if request.method == "GET" and request.query.get("watch"):
            return await self._watch(request, key)
        if request.method == "GET" and name is None:
            items = [one for one in kept.values() if _matches(one, request)]
            return web.json_response(
                {"items": items, "metadata": {"resourceVersion": str(len(self._history))}}
            )
        body = await request.json() if request.can_read_body else {}
        if request.method == "POST":
            if body["metadata"]["name"] in kept:
                return status(409, "AlreadyExists", "it exists")
            await self._put(key, body)
            return web.json_response(body, status=201)
        if request.method == "DELETE" and name is None:
            for one in [one for one in kept.values() if _matches(one, request)]:
                await self._happen(key, "DELETED", kept.pop(one["metadata"]["name"]))
            return web.json_response({"kind": "Status"})
        if name not in kept:
            return status(404, "NotFound", f"no {name}", {"name": name})
        if request.method == "PATCH":
            _merge(kept[name], body)
            await self._put(key, kept[name])
        elif request.method == "DELETE":
            await self._happen(key, "DELETED", kept.pop(name))
            return web.json_response({"kind": "Status"})
        return web.json_response(kept[name])

    async def _watch(self, request: web.Request, key: Key) -> web.StreamResponse:
        response, seen = web.StreamResponse(), int(request.query["resourceVersion"])
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while not self._ends:
                for version, whose, event in self._history[seen:]:
                    seen = version
                    if whose == key and _matches(event["object"], request):
                        await response.write(json.dumps(event).encode() + b"\n")
                async with self._changed:
                    await self._changed.wait_for(lambda: self._ends or len(self._history) > seen)  # noqa: B023
        return response

    async def end(self) -> None:
        """End all watches."""
        async with self._changed:
            self._ends = True
            self._changed.notify_all()


def _matches(found: dict[str, Any], request: web.Request) -> bool:
    labels = found["metadata"].get("labels") or {}
    for wanted in filter(None, request.query.get("labelSelector", "").split(",")):
        name, equal, value = wanted.partition("=")
        if name not in labels or (equal and labels[name] != value):
            return False
    for wanted in filter(None, request.query.get("fieldSelector", "").split(",")):
        name, _, value = wanted.partition("=")
        at: Any = found
        for part in name.split("."):
            at = (at or {}).get(part)
        if at != value:
            return False
    return True


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


@contextlib.asynccontextmanager
async def kube_objects() -> AsyncIterator[Objects]:
    """One that answers until the end of the block."""
    server = Objects()
    async with listening(server.answer, server.end) as server.url:
        yield server
