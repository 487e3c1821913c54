"""How many workers of a specification a cluster has room for: one number, and a sentence for each limit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.errors import Forbidden
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.api import ROOM_LIMITS, Job, Limit, Room
from airflow_elastic.engines.kube.capacity import nodes as on_nodes
from airflow_elastic.engines.kube.capacity import quotas
from airflow_elastic.engines.kube.capacity.asked import Asked
from airflow_elastic.engines.kube.capacity.pods import copies, requested
from airflow_elastic.engines.kube.capacity.queues.limits import queue_limits
from airflow_elastic.engines.kube.capacity.reader import Reader
from airflow_elastic.engines.kube.checks import pod_template
from airflow_elastic.spec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from airflow_elastic.adapters.kube import Access
    from airflow_elastic.engines.kube.capacity.view import View
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions
    from airflow_elastic.spec.run import RunSpec

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
#: What must be granted to see each limit.
RIGHTS = {
    "nodes": "`list nodes` and `list pods` in all namespaces (a ClusterRole)",
    "quotas": "`list resourcequotas` in the namespace of the workers",
    "queue": "`get localqueues.kueue.x-k8s.io` in the namespace of the workers, `get` and `list "
    "clusterqueues.kueue.x-k8s.io`; with Volcano `get` and `list queues.scheduling.volcano.sh`",
}


async def cluster_room(
    kind: Kind, access: Access, options: KubeOptions, spec: RunSpec, limits: Collection[str]
) -> Room:
    """How many workers of a specification fit now. See `MeasuresRoom`."""
    pod = pod_template(kind, Job("s3://bucket/run", spec, 1, spec.workers.count), options)
    async with hub(access) as shared:
        return await measure(Reader(shared, 0), Asked(pod, options), limits)


async def measure(reader: Reader, asked: Asked, limits: Collection[str] = ROOM_LIMITS) -> Room:
    """How many such workers fit now, by these limits.

    Raises:
        EngineError: the cluster does not answer, or rights are missing; the text names them.
        InvalidInput: there is no such queue.
    """
    found: list[Limit] = []
    for name in ROOM_LIMITS:
        if name not in limits:
            continue
        try:
            found += await READERS[name](reader, asked)
        except Forbidden as error:
            rest = [one for one in limits if one != name]
            raise EngineError(
                f"the room cannot be seen: {error}. Grant {RIGHTS[name]}, or leave this out: limits={rest}"
            ) from error
    return Room(tuple(found))


async def _nodes(reader: Reader, asked: Asked) -> list[Limit]:
    seen = await reader.view()
    return [await asyncio.to_thread(by_nodes, seen, asked)]


def by_nodes(seen: View, asked: Asked) -> Limit:
    """How many workers fit on the nodes of a cluster."""
    places, topology = free_places(seen, asked), asked.options.topology
    where = f"{len(seen.usable(asked.pod))} of {len(seen.nodes)} nodes may be used"
    if topology is not None:
        which = "that the run uses" if asked.own else "with the most room"
        where += f", {len(places)} of them in the {topology} {which}"
    with_room = sum(count > 0 for count in places.values())
    text = f"{where}; {with_room} have room for a worker of {_words(asked.pod)}"
    return Limit("nodes", sum(places.values()), text)


def free_places(seen: View, asked: Asked) -> dict[str, int]:
    """How many workers fit on each node that they may use."""
    each = requested(asked.pod)
    places = {name: copies(seen.free[name], each) for name in sorted(seen.usable(asked.pod))}
    topology = asked.options.topology
    return places if topology is None else on_nodes.in_one_domain(places, seen.nodes, topology, asked.own)


async def _quotas(reader: Reader, asked: Asked) -> list[Limit]:
    each, limits, namespace = requested(asked.pod), _limits(asked.pod), asked.options.namespace
    found = []
    for quota in await reader.list(QUOTAS, namespace):
        count = quotas.by_quota(quota, each, limits) if quotas.applies(quota, asked.pod) else None
        if count is not None:
            text = f"the quota {quota['metadata']['name']} of namespace {namespace}"
            found.append(Limit("quotas", count, text))
    return found


#: How each limit is read.
READERS = {"nodes": _nodes, "quotas": _quotas, "queue": queue_limits}


def _limits(pod: Mapping[str, Any]) -> Mapping[str, Decimal]:
    def only(containers: Any) -> Iterator[dict[str, Any]]:
        for one in containers or ():
            yield {"resources": {"requests": (one.get("resources") or {}).get("limits") or {}}}

    found = requested({"containers": [*only(pod.get("containers"))]})
    return {name: amount for name, amount in found.items() if name != "pods"}


def _words(pod: Mapping[str, Any]) -> str:
    each = {name: amount for name, amount in requested(pod).items() if name != "pods" and amount}
    return ", ".join(f"{name} {amount.normalize():f}" for name, amount in each.items()) or "no requests"
