"""How many workers of a specification a cluster has room for: one number, and a sentence for each limit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Missing
from airflow_elastic.adapters.kube.errors import Forbidden
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import PODS, Resource
from airflow_elastic.engines.api import ROOM_LIMITS, Job, Limit, Room
from airflow_elastic.engines.kube.capacity import nodes as on_nodes
from airflow_elastic.engines.kube.capacity import quotas
from airflow_elastic.engines.kube.capacity.pods import requested
from airflow_elastic.engines.kube.checks import pod_template
from airflow_elastic.spec.errors import EngineError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from airflow_elastic.adapters.kube import Access, Client
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions
    from airflow_elastic.spec.run import RunSpec

NODES = Resource("", "v1", "nodes", "Node")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue", needs="Kueue 0.15 or newer")
CLUSTER_QUEUES = Resource(
    "kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", needs="Kueue 0.15 or newer"
)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", needs="Volcano")

#: The namespace of objects that have none, and of a list over all namespaces.
EVERYWHERE = ""

_RIGHTS = {
    "nodes": "`list nodes` and `list pods` in all namespaces (a ClusterRole)",
    "quotas": "`list resourcequotas` in the namespace of the workers",
    "queue": "`get localqueues.kueue.x-k8s.io` in the namespace of the workers, `get` and `list "
    "clusterqueues.kueue.x-k8s.io`; with Volcano `get queues.scheduling.volcano.sh`",
}


async def cluster_room(
    kind: Kind, access: Access, options: KubeOptions, spec: RunSpec, limits: Collection[str]
) -> Room:
    """How many workers of a specification fit now. See `MeasuresRoom`."""
    pod = pod_template(kind, Job("s3://bucket/run", spec, 1, spec.workers.count), options)
    async with hub(access) as shared:
        return await measure(shared.client, pod, options, limits)


async def measure(
    client: Client, pod: Mapping[str, Any], options: KubeOptions, limits: Collection[str] = ROOM_LIMITS
) -> Room:
    """How many workers with this pod `spec` fit now.

    Args:
        client: of the cluster.
        pod: the pod template's `spec` of one worker.
        options: name the namespace, the queue and the topology.
        limits: which limits to look at: `nodes`, `quotas`, `queue`.

    Raises:
        EngineError: the cluster does not answer, or rights are missing; the text names them.
        InvalidInput: there is no such queue.
    """
    found: list[Limit] = []
    for name in ROOM_LIMITS:
        if name not in limits:
            continue
        try:
            found += [limit async for limit in _READERS[name](client, pod, options)]
        except Forbidden as error:
            rest = [one for one in limits if one != name]
            raise EngineError(
                f"the room cannot be seen: {error}. Grant {_RIGHTS[name]}, or leave this out: limits={rest}"
            ) from error
    return Room(tuple(found))


async def _nodes(client: Client, pod: Mapping[str, Any], options: KubeOptions) -> Any:
    nodes, _ = await client.list(NODES, EVERYWHERE)
    pods, _ = await client.list(
        PODS, EVERYWHERE, fields="status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!="
    )
    places = on_nodes.places(nodes, pods, pod)
    usable, whole = len(places), len(nodes)
    where = f"{usable} of {whole} nodes may be used"
    if options.topology is not None:
        places = on_nodes.in_one_domain(places, nodes, options.topology)
        where += f", {len(places)} of them in the {options.topology} with the most room"
    with_room = sum(count > 0 for count in places.values())
    yield Limit(
        "nodes", sum(places.values()), f"{where}; {with_room} have room for a worker of {_words(pod)}"
    )


async def _quotas(client: Client, pod: Mapping[str, Any], options: KubeOptions) -> Any:
    each, limits = requested(pod), _limits(pod)
    for quota in (await client.list(QUOTAS, options.namespace))[0]:
        count = quotas.by_quota(quota, each, limits)
        if count is not None:
            name = quota["metadata"]["name"]
            yield Limit("quotas", count, f"the quota {name} of namespace {options.namespace}")


async def _queue(client: Client, pod: Mapping[str, Any], options: KubeOptions) -> Any:
    if options.queue is None:
        return
    each = requested(pod)
    if options.queueing == "volcano":
        queue = await _found(client, VOLCANO_QUEUES, EVERYWHERE, options.queue)
        count = quotas.by_capability(queue, each)
        if (state := (queue.get("status") or {}).get("state", "Open")) != "Open":
            yield Limit("queue", 0, f"the queue {options.queue} is {state}")
        elif count is not None:
            yield Limit("queue", count, f"the capability of the queue {options.queue}")
    elif options.by_kueue:
        local = await _found(client, LOCAL_QUEUES, options.namespace, options.queue)
        queue = await _found(client, CLUSTER_QUEUES, EVERYWHERE, local["spec"]["clusterQueue"])
        for limit in await _kueue(client, local, queue, each):
            yield limit


async def _kueue(
    client: Client, local: Mapping[str, Any], queue: Mapping[str, Any], each: Mapping[str, Decimal]
) -> list[Limit]:
    name = queue["metadata"]["name"]
    for one, what in ((local, "LocalQueue"), (queue, "ClusterQueue")):
        if (policy := one["spec"].get("stopPolicy", "None")) != "None":
            return [
                Limit("queue", 0, f"the {what} {one['metadata']['name']} is stopped (stopPolicy {policy})")
            ]
    if lacking := quotas.uncovered(queue, each):
        return [Limit("queue", 0, f"the ClusterQueue {name} has no quota for {', '.join(lacking)}")]
    cohort = quotas.cohort_of(queue)
    members = (await client.list(CLUSTER_QUEUES, EVERYWHERE))[0] if cohort else []
    same = [one for one in members if quotas.cohort_of(one) == cohort]
    waiting = (queue.get("status") or {}).get("pendingWorkloads") or 0
    text = f"the free quota of the ClusterQueue {name}"
    if waiting:
        text += f", in which {waiting} workload{'s wait' if waiting > 1 else ' waits'} already"
    return [Limit("queue", quotas.by_cluster_queue(queue, same, each), text)]


_READERS = {"nodes": _nodes, "quotas": _quotas, "queue": _queue}


async def _found(client: Client, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
    try:
        return await client.get(resource, namespace, name)
    except Missing as error:
        raise InvalidInput(f"engine_options.queue: {error}; create it, or name another queue") from error


def _limits(pod: Mapping[str, Any]) -> Mapping[str, Decimal]:
    def only(containers: Any) -> Iterator[dict[str, Any]]:
        for one in containers or ():
            yield {"resources": {"requests": (one.get("resources") or {}).get("limits") or {}}}

    found = requested({"containers": [*only(pod.get("containers"))]})
    return {name: amount for name, amount in found.items() if name != "pods"}


def _words(pod: Mapping[str, Any]) -> str:
    each = {name: amount for name, amount in requested(pod).items() if name != "pods" and amount}
    return ", ".join(f"{name} {amount.normalize():f}" for name, amount in each.items()) or "no requests"
