"""How much a ClusterQueue of Kueue would admit now, with the loans of its cohorts. Pure.

Each ClusterQueue and each cohort has a quota of its own, and may belong to a cohort. It lends its quota to its cohort,
up to its limit for lending. It may use what the cohort has left, up to its limit for borrowing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies

Object = Mapping[str, Any]

_ZERO = Decimal(0)

#: A ClusterQueue or a cohort: whether it is a cohort, and its name.
_Node = tuple[bool, str]


def by_cluster_queue(
    queue: Object, others: Sequence[Object], pod: Amounts, cohorts: Sequence[Object] = ()
) -> int:
    """How many more such pods of one job a ClusterQueue would admit now.

    All pods of a job take the same flavor of each resource group: the one with the most room. Preemption is not looked
    at.

    Args:
        queue: the ClusterQueue.
        others: all ClusterQueues, or at least those of its cohorts; itself may be among them.
        pod: the requests of one pod.
        cohorts: all Cohorts. A cohort without an object has no quota of its own.
    """
    if uncovered(queue, pod):
        return 0
    quotas, counts = Quotas([queue, *others], cohorts), []
    for group in queue["spec"].get("resourceGroups") or ():
        each = {name: pod[name] for name in group["coveredResources"] if pod.get(name)}
        if each:
            flavors = [one["name"] for one in group["flavors"]]
            room = (copies(quotas.free(queue["metadata"]["name"], one, each), each) for one in flavors)
            counts.append(max(room, default=0))
    return min(counts, default=0)


def uncovered(queue: Object, pod: Amounts) -> list[str]:
    """The resources of a pod that a ClusterQueue has no quota for: it would never admit the pod."""
    groups = queue["spec"].get("resourceGroups") or ()
    known = {name for group in groups for name in group["coveredResources"]}
    return sorted(name for name, amount in pod.items() if amount and name not in {*known, "pods"})


def cohort_of(queue: Object) -> str | None:
    """The name of a ClusterQueue's cohort, in either form of its API."""
    spec = queue["spec"]
    name: str | None = spec.get("cohortName") or spec.get("cohort")
    return name


class Quota(NamedTuple):
    """Of a resource in a flavor.

    Attributes:
        nominal: its own.
        lending: the most that others of its cohort may use of it; None is no limit.
        borrowing: the most that it may use of others; None is no limit.
    """

    nominal: Decimal = _ZERO
    lending: Decimal | None = None
    borrowing: Decimal | None = None


class Quotas:
    """The quotas of all ClusterQueues, and their use, which can be changed: `use`."""

    def __init__(self, queues: Iterable[Object], cohorts: Iterable[Object] = ()) -> None:
        self._objects: dict[_Node, Object] = {(True, one["metadata"]["name"]): one for one in cohorts}
        self._objects |= {(False, one["metadata"]["name"]): one for one in queues}
        self._further: dict[tuple[str, str, str], Decimal] = defaultdict(Decimal)

    def free(self, queue: str, flavor: str, names: Iterable[str]) -> dict[str, Decimal]:
        """What a ClusterQueue could still use of these resources in a flavor. At least 0."""
        return {name: max(_ZERO, _Tree(self, flavor, name).free((False, queue))) for name in names}

    def use(self, queue: str, flavor: str, amount: Amounts) -> None:
        """Count on so much more use by a ClusterQueue from now on; less, if it is below 0."""
        for name, more in amount.items():
            self._further[queue, flavor, name] += more

    def knows(self, queue: str) -> bool:
        """Whether there is such a ClusterQueue."""
        return (False, queue) in self._objects

    def groups(self, queue: str) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
        """The resource groups of a ClusterQueue: the names of resources and of flavors."""
        for group in self._objects[False, queue]["spec"].get("resourceGroups") or ():
            yield group["coveredResources"], [one["name"] for one in group["flavors"]]

    def used(self, queue: str, flavor: str, name: str) -> Decimal:
        """What admitted jobs of a ClusterQueue have reserved."""
        status = self._objects[False, queue].get("status") or {}
        for one in status.get("flavorsReservation") or ():
            for resource in one.get("resources") or () if one["name"] == flavor else ():
                if resource["name"] == name:
                    total = amounts({"total": resource.get("total") or "0"})["total"]
                    return total + self._further[queue, flavor, name]
        return self._further[queue, flavor, name]

    def quota(self, node: _Node, flavor: str, name: str) -> Quota:
        """What a ClusterQueue or a cohort has of its own."""
        spec = self._objects[node]["spec"] if node in self._objects else {}
        for group in spec.get("resourceGroups") or ():
            for one in group["flavors"]:
                for resource in one["resources"] if one["name"] == flavor else ():
                    if resource["name"] == name:
                        keys = ("nominalQuota", "lendingLimit", "borrowingLimit")
                        given = amounts({key: resource[key] for key in keys if resource.get(key) is not None})
                        nominal = given.get("nominalQuota", _ZERO)
                        return Quota(nominal, given.get("lendingLimit"), given.get("borrowingLimit"))
        return Quota()

    def parent(self, node: _Node) -> _Node | None:
        """The cohort to which a ClusterQueue or a cohort belongs."""
        found = self._objects.get(node)
        if found is None:
            return None
        name = found["spec"].get("parentName") if node[0] else cohort_of(found)
        return (True, name) if name else None

    def path(self, node: _Node) -> list[_Node] | None:
        """It, its cohort, and so on to the outermost; None if they form a circle, in which nothing is admitted."""
        found = [node]
        while (parent := self.parent(found[-1])) is not None:
            if parent in found:
                return None
            found.append(parent)
        return found

    @cached_property
    def children(self) -> Mapping[_Node, Sequence[_Node]]:
        """The members of each cohort."""
        found: dict[_Node, list[_Node]] = defaultdict(list)
        for node in {one for below in self._objects for one in self.path(below) or ()}:
            if (parent := self.parent(node)) is not None:
                found[parent].append(node)
        return found


class _Tree:
    """One resource in one flavor, with all that is below a ClusterQueue or a cohort."""

    def __init__(self, quotas: Quotas, flavor: str, name: str) -> None:
        self._quotas, self._what = quotas, (flavor, name)

    def free(self, node: _Node) -> Decimal:
        """What it may still use."""
        path = self._quotas.path(node)
        if path is None:
            return _ZERO
        left = _ZERO
        for i, one in enumerate(reversed(path)):
            whole, used = self._whole(one), self._used(one)
            if i == 0:
                left = whole - used
                continue
            kept = self._kept(one)
            limit = self._quotas.quota(one, *self._what).borrowing
            if limit is not None:
                left = min(left, whole - kept - max(_ZERO, used - kept) + limit)
            left += max(_ZERO, kept - used)
        return left

    def _whole(self, node: _Node) -> Decimal:
        """Its own quota, and what its members lend."""
        lent = sum((self._whole(one) - self._kept(one) for one in self._members(node)), _ZERO)
        return self._quotas.quota(node, *self._what).nominal + lent

    def _kept(self, node: _Node) -> Decimal:
        """What it does not lend."""
        lending = self._quotas.quota(node, *self._what).lending
        return _ZERO if lending is None else max(_ZERO, self._whole(node) - lending)

    def _used(self, node: _Node) -> Decimal:
        """Its use: its own, or that of its members beyond the quota that they do not lend."""
        is_cohort, name = node
        if not is_cohort:
            return self._quotas.used(name, *self._what)
        return sum((max(_ZERO, self._used(one) - self._kept(one)) for one in self._members(node)), _ZERO)

    def _members(self, node: _Node) -> Sequence[_Node]:
        return self._quotas.children.get(node, ()) if node[0] else ()
