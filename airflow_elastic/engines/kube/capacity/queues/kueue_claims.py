"""Who waits in the queues of Kueue for quota that a run's workers have. Pure.

Work of a higher priority claims it, in the same ClusterQueue or its cohorts. Work of any priority claims the quota of
its own ClusterQueue, while the run has borrowed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.capacity.pods import Amounts, copies, plus, requested
from airflow_elastic.engines.kube.capacity.queues.kueue_quota import Quotas
from airflow_elastic.spec.scaling.observation import Claim

Object = Mapping[str, Any]

#: So many waiting workloads are looked at.
MOST_WAITING = 50


class Ours(NamedTuple):
    """The admitted Workload of a run.

    Attributes:
        queue: the ClusterQueue.
        priority: of the Workload.
        each: what one worker takes, by flavor.
        workers: how many there are.
    """

    queue: str
    priority: int
    each: Mapping[str, Amounts]
    workers: int


def ours(workloads: Sequence[Object], namespace: str, job: str, pod: Amounts, workers: int) -> Ours | None:
    """The newest admitted Workload of a job; None if it has none.

    Args:
        workloads: slim.
        namespace: of the job.
        job: its name, which is also that of the Workload if it is a group of pods.
        pod: what one worker requests.
        workers: how many run now.
    """
    found = [one for one in _of(workloads, namespace, job) if one["admitted"]]
    if not found:
        return None
    newest = max(found, key=lambda one: str(one["created"]))
    each: dict[str, dict[str, Decimal]] = defaultdict(dict)
    for name, flavor in newest["flavors"].items():
        if pod.get(name):
            each[flavor][name] = pod[name]
    return Ours(newest["queue"], newest["priority"], each, workers)


def priority(workloads: Sequence[Object], namespace: str, job: str) -> int | None:
    """The priority of a job that has been admitted, or waits; None if it has no Workload."""
    alive = (one for one in _of(workloads, namespace, job) if one["admitted"] or one["waits"])
    return max((one["priority"] for one in alive), default=None)


def _of(workloads: Sequence[Object], namespace: str, job: str) -> Iterator[Object]:
    for one in workloads:
        if one["namespace"] == namespace and job in {one["name"], *one["owners"]}:
            yield one


def claims(
    mine: Ours, workloads: Sequence[Object], local: Sequence[Object], quotas: Quotas, now: float
) -> Iterator[Claim]:
    """The claims on the quota of a run.

    Args:
        mine: what it has.
        workloads: slim, of all namespaces.
        local: all LocalQueues.
        quotas: of all ClusterQueues; changed by the claims.
        now: epoch seconds.
    """
    queues = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one["spec"]["clusterQueue"] for one in local
    }
    waiting = [one for one in workloads if one["waits"] and (one["namespace"], one["local"]) in queues]
    gone = 0
    for one in sorted(waiting, key=lambda one: (-one["priority"], one["created"]))[:MOST_WAITING]:
        queue = queues[one["namespace"], one["local"]]
        count = _fewest(mine, one, queue, quotas, mine.workers - gone)
        if not count:
            continue
        gone += count
        waited = max(0.0, now - datetime.fromisoformat(one["since"]).timestamp())
        yield Claim(f"workload {one['namespace']}/{one['name']}", count, one["priority"], waited)


def _fewest(mine: Ours, one: Object, queue: str, quotas: Quotas, most: int) -> int:
    """How many workers must leave for a workload, which then takes what they had. 0: it would not help, or none."""
    if not quotas.knows(queue):
        return 0
    lends = _has_lent(mine, one, queue, quotas)
    if one["priority"] <= mine.priority and not lends:
        return 0
    if _takes(one, queue, quotas) is not None:
        return 0
    _leave(mine, quotas, most)
    if _takes(one, queue, quotas) is None:
        _leave(mine, quotas, -most)
        return 0
    few, many = 0, most  # so many are too few, and so many are enough
    while many - few > 1:
        middle = (few + many) // 2
        _leave(mine, quotas, middle - many)
        if _takes(one, queue, quotas) is None:
            _leave(mine, quotas, many - middle)
            few = middle
        else:
            many = middle
    for flavor, amount in (_takes(one, queue, quotas) or {}).items():
        quotas.use(queue, flavor, amount)
    return many


def _takes(one: Object, queue: str, quotas: Quotas) -> dict[str, Amounts] | None:
    """What a workload would take now, by flavor; None if a resource does not fit."""
    found: dict[str, Amounts] = {}
    asked = {name: amount for name, amount in one["requests"].items() if amount}
    for covered, flavors in quotas.groups(queue):
        each = {name: asked.pop(name) for name in covered if name in asked}
        if not each:
            continue
        fits = next((f for f in flavors if copies(quotas.free(queue, f, each), each)), None)
        if fits is None:
            return None
        found[fits] = plus(found.get(fits, {}), each)
    return found if not asked.keys() - {"pods"} else None


def _has_lent(mine: Ours, one: Object, queue: str, quotas: Quotas) -> bool:
    """Whether the workload needs no more than its queue's own quota, while the run's queue uses more than its own."""
    if queue == mine.queue:
        return False
    for flavor, each in mine.each.items():
        for name in each:
            asked = one["requests"].get(name)
            own = quotas.quota((False, queue), flavor, name).nominal
            over = (
                quotas.used(mine.queue, flavor, name)
                > quotas.quota((False, mine.queue), flavor, name).nominal
            )
            if asked and over and quotas.used(queue, flavor, name) + asked <= own:
                return True
    return False


def _leave(mine: Ours, quotas: Quotas, count: int) -> None:
    for flavor, each in mine.each.items():
        quotas.use(mine.queue, flavor, {name: -count * amount for name, amount in each.items()})


def slim(workload: dict[str, Any]) -> dict[str, Any]:
    """The parts of a Workload that are read."""
    metadata, spec, status = workload["metadata"], workload["spec"], workload.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    admission = status.get("admission") or {}
    reserved, over = (conditions.get(kind, {}) for kind in ("QuotaReserved", "Finished"))
    done = over.get("status") == "True" or not spec.get("active", True)
    has = reserved.get("status") == "True"
    whole: dict[str, Decimal] = {}
    for group in spec.get("podSets") or ():
        fewest = group.get("minCount") or group.get("count", 1)
        each = requested(group["template"]["spec"])
        whole = plus(whole, {name: fewest * amount for name, amount in each.items()})
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "owners": [one["name"] for one in metadata.get("ownerReferences") or ()],
        "created": metadata["creationTimestamp"],
        "since": reserved.get("lastTransitionTime") or metadata["creationTimestamp"],
        "local": spec.get("queueName"),
        "priority": spec.get("priority") or 0,
        "queue": admission.get("clusterQueue"),
        "flavors": {
            name: flavor
            for one in admission.get("podSetAssignments") or ()
            for name, flavor in (one.get("flavors") or {}).items()
        },
        "admitted": has and not done,
        "waits": not has and not done,
        "requests": whole,
    }
