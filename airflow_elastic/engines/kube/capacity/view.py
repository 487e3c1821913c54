"""What all runs of a cluster see of its nodes and pods at one moment. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_elastic.engines.kube.capacity.nodes import why_not
from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies, left, requested
from airflow_elastic.engines.kube.capacity.removal import marks

Object = Mapping[str, Any]

_ENDED = ("Succeeded", "Failed")

#: A pod that nobody has looked at for so long waits for something else than the scheduler: its gang, or a queue.
NEW_SECONDS = 60.0

#: For so many new pods a place is looked for.
MOST_NEW = 100


@dataclass(frozen=True)
class View:
    """Nodes and pods.

    Attributes:
        at: when they were read, epoch seconds.
        nodes: by name.
        free: what is left of each node beside the pods that are there, and those that are about to come.
        placed: pods that have a node, and have not ended.
        waiting: pods that the scheduler could not place.
        unplaced: all pods without a node, these too.
        since: since when a node has had a mark of its removal, by the name of the node and the mark.
    """

    at: float
    nodes: Mapping[str, Object] = field(default_factory=dict)
    free: Mapping[str, Amounts] = field(default_factory=dict)
    placed: Sequence[Object] = ()
    waiting: Sequence[Object] = ()
    unplaced: Sequence[Object] = ()
    since: Mapping[tuple[str, str], float] = field(default_factory=dict)
    _known: dict[tuple[str, ...], Any] = field(default_factory=dict, compare=False, repr=False)

    def usable(self, pod: Object) -> frozenset[str]:
        """The nodes that a pod with this `spec` may use, whatever is free there. Many pods are alike."""
        key = ("usable", *(repr(pod.get(name)) for name in ("nodeSelector", "tolerations", "affinity")))
        if key not in self._known:
            self._known[key] = frozenset(n for n, node in self.nodes.items() if why_not(node, pod) is None)
        found: frozenset[str] = self._known[key]
        return found

    def fitting(self, pod: Object, each: Amounts) -> tuple[str, ...]:
        """Those of them, by name, that have room for a pod with these requests."""
        usable = self.usable(pod)
        key = ("fitting", str(id(usable)), repr(sorted(each.items())))
        if key not in self._known:
            self._known[key] = tuple(sorted(name for name in usable if copies(self.free[name], each)))
        found: tuple[str, ...] = self._known[key]
        return found

    def own(self, namespace: str, label: str, name: str) -> list[Object]:
        """The placed pods of one job that are not about to end."""
        return [
            pod
            for pod in self.placed
            if pod["metadata"]["labels"].get(label) == name
            and pod["metadata"]["namespace"] == namespace
            and not pod["metadata"]["ends"]
        ]

    def priority(self, namespace: str, label: str, name: str) -> int:
        """The priority of the pods of one job, also while they wait; 0 if there are none."""
        pods = (
            pod["spec"]["priority"]
            for pod in (*self.placed, *self.unplaced)
            if pod["metadata"]["labels"].get(label) == name and pod["metadata"]["namespace"] == namespace
        )
        return max(pods, default=0)


def view(at: float, nodes: Iterable[Object], pods: Iterable[Object], former: View | None = None) -> View:
    """The view of these (slim) nodes and pods.

    Args:
        at: when they were read, epoch seconds.
        nodes: all Nodes.
        pods: all pods of the cluster.
        former: the last view.
    """
    by_name = {node["metadata"]["name"]: node for node in nodes}
    taken: dict[str, list[Amounts]] = defaultdict(list)
    placed: list[Object] = []
    unplaced: list[Object] = []
    waiting, new = [], []
    for slim in pods:
        if slim["status"]["phase"] in _ENDED:
            continue
        pod = {**slim, "requests": requested(slim["spec"])}
        spec, status = pod["spec"], pod["status"]
        (placed if spec["nodeName"] else unplaced).append(pod)
        # For a nominated pod others are being ended.
        if node := spec["nodeName"] or (None if spec["schedulingGates"] else status["nominated"]):
            taken[node].append(pod["requests"])
        elif status["refused"] and not spec["schedulingGates"]:
            waiting.append(pod)
        elif not spec["schedulingGates"] and at - since(pod) < NEW_SECONDS:
            new.append(pod)
    whole = {name: amounts(node["status"]["allocatable"]) for name, node in by_name.items()}
    free: dict[str, Amounts] = {name: left(each, taken[name]) for name, each in whole.items()}
    for pod in new[:MOST_NEW]:
        place(free, by_name, pod)
    known = former.since if former is not None else {}
    marked = {(name, mark) for name, node in by_name.items() for mark in marks(node)}
    return View(at, by_name, free, placed, waiting, unplaced, {one: known.get(one, at) for one in marked})


def place(free: dict[str, Amounts], nodes: Mapping[str, Object], pod: Object) -> bool:
    """Take the room for a pod on the node that has room for most such pods; returns whether there is one."""
    each = pod["requests"]
    room = {
        name: count
        for name, amount in free.items()
        if (count := copies(amount, each)) and why_not(nodes[name], pod["spec"]) is None
    }
    best = max(room, key=lambda name: room[name], default=None)
    if best is not None:
        free[best] = left(free[best], [each])
    return best is not None


def since(pod: Object) -> float:
    """When a (slim) pod was made, epoch seconds."""
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def slim_node(node: dict[str, Any]) -> dict[str, Any]:
    """The parts of a Node that are read."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": {
            "name": metadata["name"],
            "labels": metadata.get("labels") or {},
            "ends": "deletionTimestamp" in metadata,
        },
        "spec": {"taints": spec.get("taints") or [], "unschedulable": spec.get("unschedulable", False)},
        "status": {
            "allocatable": status.get("allocatable") or {},
            "conditions": [one for one in status.get("conditions") or () if one["type"] == "Ready"],
        },
    }


def slim_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """The parts of a pod that are read. There may be tens of thousands."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    waits = [c for c in status.get("conditions") or () if c["type"] == "PodScheduled"]
    annotations = metadata.get("annotations") or {}
    kept = (
        "nodeSelector",
        "tolerations",
        "overhead",
        "resources",
        "priorityClassName",
        "activeDeadlineSeconds",
    )
    affinity = (spec.get("affinity") or {}).get("nodeAffinity")
    gang = (spec.get("schedulingGroup") or {}).get("podGroupName") or annotations.get(
        "scheduling.k8s.io/group-name"
    )
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata.get("namespace", "default"),
            "labels": metadata.get("labels") or {},
            "creationTimestamp": metadata.get("creationTimestamp") or "1970-01-01T00:00:00Z",
            "ends": "deletionTimestamp" in metadata,
        },
        "spec": {
            **{name: spec[name] for name in kept if spec.get(name)},
            **({"affinity": {"nodeAffinity": affinity}} if affinity else {}),
            "containers": [{"resources": one.get("resources") or {}} for one in spec.get("containers") or ()],
            "initContainers": [
                {"resources": one.get("resources") or {}, "restartPolicy": one.get("restartPolicy")}
                for one in spec.get("initContainers") or ()
            ],
            "nodeName": spec.get("nodeName"),
            "priority": spec.get("priority") or 0,
            "schedulingGates": bool(spec.get("schedulingGates")),
            "gang": gang,
        },
        "status": {
            "phase": status.get("phase", "Pending"),
            "nominated": status.get("nominatedNodeName"),
            "refused": any(c["status"] == "False" and c.get("reason") == "Unschedulable" for c in waits),
        },
    }
