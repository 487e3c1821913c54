"""Reads a cluster once for all runs that ask within an interval."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import PODS, Resource
from airflow_elastic.engines.kube.capacity.view import View, slim_node, slim_pod, view

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube.hub import Hub

NODES = Resource("", "v1", "nodes", "Node")

#: The namespace of objects that have none, and of a list over all namespaces.
EVERYWHERE = ""

_ALIVE = "status.phase!=Succeeded,status.phase!=Failed"


class Reader:
    """A cluster's objects, as they were at most `seconds` ago."""

    def __init__(self, hub: Hub, seconds: float) -> None:
        self._hub, self._seconds = hub, seconds

    def now(self) -> float:
        """Epoch seconds."""
        return time.time()

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        """One object. Raises Missing where there is none."""

        async def read(_: Any) -> dict[str, Any]:
            return await self._hub.client.get(resource, namespace, name)

        found: dict[str, Any] = await self._hub.reads.get((resource, namespace, name), self._seconds, read)
        return found

    async def list(
        self, resource: Resource, namespace: str, slim: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> list[dict[str, Any]]:
        """All objects of a kind, with the parts that `slim` keeps."""

        async def read(_: Any) -> list[dict[str, Any]]:
            return (await self._hub.client.list(resource, namespace, slim=slim))[0]

        found: list[dict[str, Any]] = await self._hub.reads.get((resource, namespace), self._seconds, read)
        return found

    async def view(self) -> View:
        """Nodes and pods of the whole cluster."""

        async def read(former: View | None) -> View:
            client, at = self._hub.client, time.time()
            nodes, _ = await client.list(NODES, EVERYWHERE, slim=slim_node)
            pods, _ = await client.list(PODS, EVERYWHERE, fields=_ALIVE, slim=slim_pod)
            return await asyncio.to_thread(view, at, nodes, pods, former)

        found: View = await self._hub.reads.get("view", self._seconds, read)
        return found
