"""What a Queue of Volcano leaves to a run, and which gangs wait in it. Pure.

A queue may use its `capability`, and what the cluster has beside the `guarantee` of other queues. Its `deserved` share
is its own; what it uses beyond that, others take back when they need it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies, left, plus
from airflow_elastic.spec.scaling.observation import Claim

Object = Mapping[str, Any]

_ZERO = Decimal(0)


class Queue(NamedTuple):
    """Amounts of a Queue.

    Attributes:
        most: what it may use together; a resource without a limit is not in it.
        deserved: its own share; empty if the cluster has none.
        used: what runs in it.
    """

    most: Amounts
    deserved: Amounts
    used: Amounts


def queue_of(queue: Object, others: Sequence[Object] = (), cluster: Amounts | None = None) -> Queue:
    """The amounts of a Queue.

    Args:
        queue: the Queue.
        others: all Queues; itself may be among them.
        cluster: what all nodes have; None if unknown: then guarantees of others are not counted.
    """
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    most = dict(amounts(spec.get("capability") or {}))
    for name, amount in _beside_guarantees(queue, others, cluster or {}).items():
        most[name] = min(amount, most.get(name, amount))
    used = amounts(status.get("allocated") or {})
    return Queue(most, amounts(spec.get("deserved") or {}), used)


def room(queue: Queue, pod: Amounts) -> int | None:
    """How many more such pods it has room for; None if it has no limit for their resources."""
    return _room(queue.most, queue.used, pod)


def own_room(queue: Queue, pod: Amounts) -> int | None:
    """How many of these are within its own share; None if it has none for their resources."""
    return _room(queue.deserved, queue.used, pod)


def claims(
    queue: Queue, groups: Iterable[Object], priority: int, pod: Amounts, workers: int, now: float
) -> Iterator[Claim]:
    """The waiting gangs of a higher priority, and how many workers of a run must leave so that the queue has room.

    Args:
        queue: the run's.
        groups: the (slim) PodGroups that wait in it, with the priorities of their pods.
        priority: of the run's pods.
        pod: what one worker requests.
        workers: how many run.
        now: epoch seconds.
    """
    used, gone = queue.used, 0
    for one in sorted(groups, key=lambda one: (-one["priority"], one["created"])):
        each = {name: amount for name, amount in one["requests"].items() if name in queue.most and amount}
        if one["priority"] <= priority or not each or copies(left(queue.most, [used]), each):
            continue
        for count in range(1, workers - gone + 1):
            freed = {name: used.get(name, _ZERO) - count * amount for name, amount in pod.items()}
            trial = {**used, **freed}
            if copies(left(queue.most, [trial]), each):
                used, gone = plus(trial, each), gone + count
                waited = max(0.0, now - datetime.fromisoformat(one["created"]).timestamp())
                yield Claim(f"gang {one['namespace']}/{one['name']}", count, one["priority"], waited)
                break


def waiting(groups: Iterable[Object], queue: str, pods: Iterable[Object]) -> list[dict[str, Any]]:
    """The PodGroups that wait in a queue, with the priority of their pods. One without a pod has the priority 0.

    Args:
        groups: slim.
        queue: its name.
        pods: the waiting pods of the cluster, slim.
    """
    priorities: dict[tuple[str, str], int] = defaultdict(int)
    for pod in pods:
        if gang := pod["spec"]["gang"]:
            priorities[pod["metadata"]["namespace"], gang] = pod["spec"]["priority"]
    return [
        {**one, "priority": priorities[one["namespace"], one["name"]]}
        for one in groups
        if one["queue"] == queue and one["phase"] in ("Pending", "Inqueue")
    ]


def slim(group: dict[str, Any]) -> dict[str, Any]:
    """The parts of a PodGroup that are read."""
    metadata, spec = group["metadata"], group.get("spec") or {}
    return {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "created": metadata["creationTimestamp"],
        "queue": spec.get("queue") or "default",
        "phase": (group.get("status") or {}).get("phase", "Pending"),
        "requests": amounts(spec.get("minResources") or {}),
    }


def _room(most: Amounts, used: Amounts, pod: Amounts) -> int | None:
    each = {name: pod[name] for name in most if pod.get(name)}
    return copies(left(most, [used]), each) if each else None


def _beside_guarantees(queue: Object, others: Sequence[Object], cluster: Amounts) -> dict[str, Decimal]:
    """The cluster without its guarantees to other queues: of resources that have such guarantees."""
    kept: dict[str, Decimal] = {}
    for one in others:
        if one["metadata"]["name"] != queue["metadata"]["name"]:
            kept = plus(kept, amounts(((one.get("spec") or {}).get("guarantee") or {}).get("resource") or {}))
    return {name: cluster[name] - amount for name, amount in kept.items() if amount and name in cluster}
