"""The capacity that a cluster has for a job: room for further workers, and the claims of others on its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.errors import Forbidden
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.engines.api import ROOM_LIMITS, Job, Limit, Room
from airflow_elastic.engines.kube.capacity.asked import Asked
from airflow_elastic.engines.kube.capacity.claims import Worker, claims
from airflow_elastic.engines.kube.capacity.queues.waiting import queue_claims
from airflow_elastic.engines.kube.capacity.reader import Reader
from airflow_elastic.engines.kube.capacity.room import READERS, RIGHTS, by_nodes, free_places
from airflow_elastic.engines.kube.capacity.view import View
from airflow_elastic.engines.kube.checks import pod_template
from airflow_elastic.spec.scaling.observation import Capacity, Claim

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Access
    from airflow_elastic.engines.kube.kind import Kind
    from airflow_elastic.engines.kube.options import KubeOptions

#: How old the answer may be if the policy looks seldom, in seconds.
MOST_SECONDS = 30.0

#: The share of a policy's interval: below 1, so that a run that is alone reads at each look.
_FRESH = 0.9

#: Labels that name the pool of a node, on the platforms that have pools.
_POOLS = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "node.kubernetes.io/instance-type",
    "nvidia.com/gpu.product",
)


async def job_capacity(kind: Kind, access: Access, options: KubeOptions, job: Job) -> Capacity:
    """See `MeasuresCapacity`."""
    async with hub(access) as shared:
        return await _read(Reader(shared, fresh_seconds(job)), kind, options, job)


def fresh_seconds(job: Job) -> float:
    """How old an answer may be."""
    policy = job.spec.scaling_policy
    return 0.0 if policy is None else min(MOST_SECONDS, _FRESH * policy.interval_seconds)


async def _read(reader: Reader, kind: Kind, options: KubeOptions, job: Job) -> Capacity:
    lacking: list[str] = []
    try:
        seen = await reader.view()
    except Forbidden as error:
        # Quotas and queues are read all the same, so that the text names all rights that are missing.
        seen = View(0.0)
        lacking.append(_needed("nodes", error))
    own = workers(seen, kind, options, job)
    # A pod that exists has what the cluster has added: defaults, a sidecar, the nodes of a queue's flavor.
    pod = own[0].pod["spec"] if own else pod_template(kind, job, options)
    asked = Asked(pod, options, frozenset(worker.pod["spec"]["nodeName"] for worker in own))
    limits: list[Limit] = []
    found: tuple[Claim, ...] = ()
    pools: Mapping[str, int] = {}
    if not lacking:
        # Those beyond are leaving, if they are not standby workers.
        stay = len(own) if job.spec.workers.standby else job.workers
        one, found, pools = await asyncio.to_thread(_of_nodes, seen, asked, own[:stay], own[stay:])
        limits.append(one)
    for name in ROOM_LIMITS[1:]:
        try:
            limits += await READERS[name](reader, asked)
        except Forbidden as error:
            lacking.append(_needed(name, error))
    at, room = seen.at or reader.now(), Room(tuple(limits))
    queue = await queue_claims(reader, asked, job.name, own, at)
    free = None if lacking else room.workers
    of_pods = seen.priority(options.namespace, kind.pod_label, job.name)
    priority = of_pods if queue.priority is None else queue.priority
    notes = [*lacking, *([str(room)] if limits else []), *([queue.lacking] if queue.lacking else [])]
    return Capacity(at, free, "; ".join(notes), (*found, *queue.claims), pools, priority)


def workers(seen: View, kind: Kind, options: KubeOptions, job: Job) -> list[Worker]:
    """The workers of a job that have a node, and are not about to end."""
    pods = seen.own(options.namespace, kind.pod_label, job.name)
    return sorted(
        (Worker(index, pod) for pod in pods if (index := kind.index(pod)) is not None),
        key=lambda worker: worker.number,
    )


def pools_of(places: Mapping[str, int], nodes: Mapping[str, Any]) -> dict[str, int]:
    """Free workers by node pool; where nodes have no pools, `nodes` is the only one."""
    found: Counter[str] = Counter()
    for name, count in places.items():
        labels = nodes[name]["metadata"]["labels"]
        found[next((labels[one] for one in _POOLS if labels.get(one)), "nodes")] += count
    return dict(found)


def _of_nodes(
    seen: View, asked: Asked, own: list[Worker], gone: list[Worker]
) -> tuple[Limit, tuple[Claim, ...], Mapping[str, int]]:
    return by_nodes(seen, asked), claims(seen, own, gone), pools_of(free_places(seen, asked), seen.nodes)


def _needed(name: str, error: Forbidden) -> str:
    return f"the free capacity is not known: {error}. Grant {RIGHTS[name]}"
