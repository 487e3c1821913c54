"""An API server in this process that can be told to misbehave: as much of one as our client asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web

from airflow_elastic.adapters.kube import Access, Resource
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

THINGS = Resource("example.org", "v1", "things", "Thing", needs="the operator of things")
KEY = "example.org/run"
_PATH = THINGS.path("ns")


@dataclass
class ApiServer:
    """Keeps `Thing`s of one namespace, with a history that watches go on from.

    Attributes:
        refuse: is asked first for every request, given what it is (`list`, `watch`, `get`); a response that it returns
            is the answer.
        seen: what was asked so far.
        watch_lasts: None, or after how many events a watch is ended.
        page: how many objects a list's page holds, whatever was asked for.
    """

    refuse: Callable[[str, web.Request], web.Response | None] = lambda *_: None
    seen: list[str] = field(default_factory=list)
    watch_lasts: int | None = None
    page: int = 500
    url: str = ""
    _objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    _history: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    _version: int = 100
    _forgotten: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _cut: int = 0

    @property
    def access(self) -> Access:
        """How to reach it."""
        return Access(content=json.dumps(kubeconfig(self.url)))

    # -- what tests do ---------------------------------------------------------------------------------------------

    async def put(self, name: str, key: str | None = None, **fields: Any) -> None:
        """Create or change an object; with None for its key it has no label."""
        kind = "MODIFIED" if name in self._objects else "ADDED"
        labels = {} if key is None else {KEY: key}
        await self._happen(kind, {"metadata": {"name": name, "labels": labels}, **fields})

    async def remove(self, name: str) -> None:
        """Delete an object."""
        await self._happen("DELETED", self._objects[name])

    async def compact(self) -> None:
        """Forget the past: watches can neither begin there nor go on."""
        async with self._changed:
            self._version += 1
            self._forgotten, self._history = self._version, []
            self._changed.notify_all()

    async def cut(self) -> None:
        """Break off all watches."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def count(self, what: str) -> int:
        """How often something was asked."""
        return self.seen.count(what)

    async def asked(self, what: str, times: int = 1) -> None:
        """Wait until something has been asked so often."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.count(what) >= times)

    # -- what it answers -------------------------------------------------------------------------------------------

    async def _happen(self, kind: str, found: dict[str, Any]) -> None:
        async with self._changed:
            self._version += 1
            metadata = {**found["metadata"], "resourceVersion": str(self._version)}
            found = {**found, "metadata": metadata}
            self._objects[metadata["name"]] = found
            if kind == "DELETED":
                del self._objects[metadata["name"]]
            self._history.append((self._version, {"type": kind, "object": found}))
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One request."""
        name = request.path.removeprefix(_PATH).strip("/")
        what = "watch" if request.query.get("watch") else "get" if name else "list"
        async with self._changed:
            self.seen.append(what)
            self._changed.notify_all()
        if (refusal := self.refuse(what, request)) is not None:
            return refusal
        if what == "watch":
            return await self._watch(request)
        if what == "list":
            return self._list(request)
        found = self._objects.get(name)
        missing = {"name": name, "group": THINGS.group, "kind": THINGS.plural}
        return web.json_response(found) if found else status(404, "NotFound", f"no {name}", missing)

    def _list(self, request: web.Request) -> web.Response:
        at = int(request.query.get("continue", 0))
        end = at + (self.page if request.query.get("limit") else len(self._objects))
        items = sorted(self._objects.items())
        metadata = {"resourceVersion": str(self._version)}
        more = {"continue": str(end)} if end < len(items) else {}
        found = [value for _, value in items[at:end]]
        return web.json_response({"items": found or None, "metadata": {**metadata, **more}})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at, events, cut = int(request.query["resourceVersion"]), 0, self._cut
        if at < self._forgotten:
            return status(410, "Expired", f"too old resource version: {at} ({self._forgotten})")
        response = web.StreamResponse()
        await response.prepare(request)
        while self.watch_lasts is None or events < self.watch_lasts:
            async with self._changed:
                while self._cut == cut and at >= max(self._version, self._forgotten):
                    await self._changed.wait()
                due, at_now = [event for version, event in self._history if version > at], self._version
            if self._cut > cut:
                request.transport.abort() if request.transport else None
                break
            if at < self._forgotten:
                due = [{"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}]
            with contextlib.suppress(ConnectionError):
                for event in due:
                    await response.write(json.dumps(event).encode() + b"\n")
            at, events = max(at_now, self._forgotten), events + len(due)
        return response


def status(
    code: int, reason: str, message: str, details: dict[str, Any] | None = None, **headers: str
) -> web.Response:
    """An error as API servers put it."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    return web.json_response(body, status=code, headers=headers)


def kubeconfig(server: str, *, user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    """A kubeconfig of one cluster and one user."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "it", "user": user or {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    }


@contextlib.asynccontextmanager
async def listening(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], end: Callable[[], Awaitable[None]]
) -> AsyncIterator[str]:
    """The URL of a server of this machine that answers so until the end of the block, and `end`s what is under way."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await end()
        await runner.cleanup()


@contextlib.asynccontextmanager
async def api_server(**settings: Any) -> AsyncIterator[ApiServer]:
    """One that answers until the end of the block."""
    server = ApiServer(**settings)
    async with listening(server.answer, server.cut) as server.url:
        yield server
