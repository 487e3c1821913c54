"""How many more workers the limits of a namespace or a queue allow. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies, left

Object = Mapping[str, Any]

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_PODS = ("pods", "count/pods")


def by_quota(quota: Object, pod: Amounts, limits: Amounts) -> int | None:
    """How many more such pods a ResourceQuota allows; None if it limits none of their resources, or has scopes.

    Args:
        quota: the ResourceQuota.
        pod: the requests of one pod.
        limits: its limits.
    """
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return None
    asked: dict[str, Decimal] = {f"requests.{name}": amount for name, amount in pod.items()}
    asked |= {name: pod[name] for name in _PLAIN if name in pod}
    asked |= {f"limits.{name}": amount for name, amount in limits.items()}
    asked |= dict.fromkeys(_PODS, Decimal(1))
    hard = amounts(status.get("hard") or spec.get("hard") or {})
    each = {name: asked[name] for name in hard if name in asked}
    return copies(left(hard, [amounts(status.get("used") or {})]), each) if each else None


def by_cluster_queue(queue: Object, cohort: Sequence[Object], pod: Amounts) -> int:
    """How many more such pods of one job a ClusterQueue of Kueue would admit now.

    All pods of a job take the same flavor of each resource group: the one with the most room. What others of the cohort
    do not use can be borrowed, within the limits for borrowing and lending. Parents of cohorts and preemption are not
    looked at.

    Args:
        queue: the ClusterQueue.
        cohort: all ClusterQueues of its cohort, with itself; empty if it has none.
        pod: the requests of one pod.
    """
    if uncovered(queue, pod):
        return 0
    counts = []
    for group in queue["spec"].get("resourceGroups") or ():
        each = {name: pod[name] for name in group["coveredResources"] if pod.get(name)}
        if each:
            flavors = [one["name"] for one in group["flavors"]]
            counts.append(max((copies(_free(queue, cohort, one, each), each) for one in flavors), default=0))
    return min(counts, default=0)


def uncovered(queue: Object, pod: Amounts) -> list[str]:
    """The resources of a pod that a ClusterQueue has no quota for: it would never admit the pod."""
    groups = queue["spec"].get("resourceGroups") or ()
    known = {name for group in groups for name in group["coveredResources"]}
    return sorted(name for name, amount in pod.items() if amount and name not in {*known, "pods"})


def by_capability(queue: Object, pod: Amounts) -> int | None:
    """How many more such pods a Queue of Volcano has room for; None if it has no limit for their resources."""
    capability = amounts((queue.get("spec") or {}).get("capability") or {})
    each = {name: pod[name] for name in capability if pod.get(name)}
    used = amounts((queue.get("status") or {}).get("allocated") or {})
    return copies(left(capability, [used]), each) if each else None


def cohort_of(queue: Object) -> str | None:
    """The name of a ClusterQueue's cohort, in either form of its API."""
    spec = queue["spec"]
    name: str | None = spec.get("cohortName") or spec.get("cohort")
    return name


def _free(queue: Object, cohort: Sequence[Object], flavor: str, each: Iterable[str]) -> dict[str, Decimal]:
    return {name: _of_resource(queue, cohort, flavor, name) for name in each}


def _of_resource(queue: Object, cohort: Sequence[Object], flavor: str, name: str) -> Decimal:
    quota, used = _quota(queue, flavor, name), _used(queue, flavor, name)
    if not cohort:
        return quota.nominal - used
    lent = Decimal(0)
    for other in cohort:
        is_own = other["metadata"]["name"] == queue["metadata"]["name"]
        theirs = _quota(other, flavor, name)
        lendable = theirs.nominal if is_own else theirs.lending
        over = _used(other, flavor, name) - (theirs.nominal - lendable)
        lent += lendable - max(over, Decimal(0))
    if quota.borrowing is None:
        return lent
    return min(lent, quota.nominal + quota.borrowing - used)


class _Quota(NamedTuple):
    """Of a resource in a flavor.

    Attributes:
        nominal: the queue's own.
        lending: the part of it that others of the cohort may use.
        borrowing: the most that it may use of others; None is no limit.
    """

    nominal: Decimal = Decimal(0)
    lending: Decimal = Decimal(0)
    borrowing: Decimal | None = None


def _quota(queue: Object, flavor: str, name: str) -> _Quota:
    for group in queue["spec"].get("resourceGroups") or ():
        for one in group["flavors"]:
            for resource in one["resources"] if one["name"] == flavor else ():
                if resource["name"] == name:
                    keys = ("nominalQuota", "lendingLimit", "borrowingLimit")
                    given = amounts({key: resource[key] for key in keys if resource.get(key) is not None})
                    nominal = given["nominalQuota"]
                    lending = min(given.get("lendingLimit", nominal), nominal)
                    return _Quota(nominal, lending, given.get("borrowingLimit"))
    return _Quota()


def _used(queue: Object, flavor: str, name: str) -> Decimal:
    """What admitted jobs of a queue have reserved."""
    for one in (queue.get("status") or {}).get("flavorsReservation") or ():
        for resource in one.get("resources") or () if one["name"] == flavor else ():
            if resource["name"] == name:
                return amounts({"total": resource.get("total") or "0"})["total"]
    return Decimal(0)
