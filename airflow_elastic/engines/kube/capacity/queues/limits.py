"""How many workers the queue of a run has room for, read from the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube import Missing
from airflow_elastic.adapters.kube.errors import Forbidden, NoSuchKind
from airflow_elastic.adapters.kube.resources import Resource
from airflow_elastic.engines.api import Limit
from airflow_elastic.engines.kube.capacity.asked import Asked
from airflow_elastic.engines.kube.capacity.pods import amounts, plus, requested
from airflow_elastic.engines.kube.capacity.queues import kueue_quota, volcano
from airflow_elastic.engines.kube.capacity.reader import EVERYWHERE, Reader
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from airflow_elastic.engines.kube.capacity.pods import Amounts

_KUEUE, _NEEDS = ("kueue.x-k8s.io", "v1beta2"), "Kueue 0.15 or newer"
LOCAL_QUEUES = Resource(*_KUEUE, "localqueues", "LocalQueue", needs=_NEEDS)
CLUSTER_QUEUES = Resource(*_KUEUE, "clusterqueues", "ClusterQueue", needs=_NEEDS)
COHORTS = Resource(*_KUEUE, "cohorts", "Cohort", needs=_NEEDS)
VOLCANO_QUEUES = Resource("scheduling.volcano.sh", "v1beta1", "queues", "Queue", needs="Volcano")


async def queue_limits(reader: Reader, asked: Asked) -> list[Limit]:
    """The limit by the queue; empty if the run has none, or if the queue limits nothing.

    Raises:
        InvalidInput: there is no such queue.
        Forbidden: the right to read it is missing.
    """
    options = asked.options
    if options.queue is None:
        return []
    if options.queueing == "volcano":
        return await _volcano(reader, asked, options.queue)
    return await _kueue(reader, asked, options.queue) if options.by_kueue else []


async def volcano_queue(reader: Reader, name: str) -> tuple[dict[str, Any], volcano.Queue]:
    """A Queue of Volcano, and its amounts; guarantees of other queues count as far as rights allow."""
    found = await _found(reader, VOLCANO_QUEUES, EVERYWHERE, name)
    try:
        others = await reader.list(VOLCANO_QUEUES, EVERYWHERE)
        seen = await reader.view() if any((one["spec"] or {}).get("guarantee") for one in others) else None
    except Forbidden:
        others, seen = [], None
    whole: dict[str, Decimal] = {}
    for node in seen.nodes.values() if seen is not None else ():
        whole = plus(whole, amounts(node["status"]["allocatable"]))
    return found, volcano.queue_of(found, others, whole)


async def _volcano(reader: Reader, asked: Asked, name: str) -> list[Limit]:
    found, queue = await volcano_queue(reader, name)
    if (state := (found.get("status") or {}).get("state", "Open")) != "Open":
        return [Limit("queue", 0, f"the queue {name} is {state}")]
    each = requested(asked.pod)
    count, own = volcano.room(queue, each), volcano.own_room(queue, each)
    if count is None:
        return []
    text = f"the capability of the queue {name}, beside what other queues are guaranteed"
    if own is not None and own < count:
        text += f"; {own} of them are within what it deserves, and others may take back the rest"
    return [Limit("queue", count, text)]


async def _kueue(reader: Reader, asked: Asked, name: str) -> list[Limit]:
    local = await _found(reader, LOCAL_QUEUES, asked.options.namespace, name)
    queue = await _found(reader, CLUSTER_QUEUES, EVERYWHERE, local["spec"]["clusterQueue"])
    for one, what in ((local, "LocalQueue"), (queue, "ClusterQueue")):
        if (policy := one["spec"].get("stopPolicy", "None")) != "None":
            text = f"the {what} {one['metadata']['name']} is stopped (stopPolicy {policy})"
            return [Limit("queue", 0, text)]
    return [await _cluster_queue(reader, queue, requested(asked.pod))]


async def _cluster_queue(reader: Reader, queue: Mapping[str, Any], each: Amounts) -> Limit:
    name = queue["metadata"]["name"]
    if lacking := kueue_quota.uncovered(queue, each):
        return Limit("queue", 0, f"the ClusterQueue {name} has no quota for {', '.join(lacking)}")
    cohort = kueue_quota.cohort_of(queue)
    others = await reader.list(CLUSTER_QUEUES, EVERYWHERE) if cohort else []
    cohorts, unseen = await cohorts_of(reader) if cohort else ([], "")
    count = kueue_quota.by_cluster_queue(queue, others, each, cohorts)
    text = f"the free quota of the ClusterQueue {name}"
    if cohort:
        alone = kueue_quota.by_cluster_queue({**queue, "spec": {**queue["spec"], **_ALONE}}, [], each)
        text += f", {max(0, count - alone)} of it to be borrowed from the cohort {cohort}{unseen}"
    waiting = (queue.get("status") or {}).get("pendingWorkloads") or 0
    if waiting:
        text += f", in which {waiting} workload{'s wait' if waiting > 1 else ' waits'} already"
    return Limit("queue", count, text)


_ALONE = {"cohortName": None, "cohort": None}


async def cohorts_of(reader: Reader) -> tuple[list[dict[str, Any]], str]:
    """All Cohorts of Kueue, and what is not seen of them in words: they may have quotas of their own."""
    try:
        return await reader.list(COHORTS, EVERYWHERE), ""
    except Forbidden:
        return [], f" (its own quota is not seen: grant `list {COHORTS.full_name}`)"
    except NoSuchKind:
        return [], ""


async def _found(reader: Reader, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
    try:
        return await reader.get(resource, namespace, name)
    except Missing as error:
        raise InvalidInput(f"engine_options.queue: {error}; create it, or name another queue") from error
