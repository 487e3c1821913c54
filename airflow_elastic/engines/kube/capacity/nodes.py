"""Which nodes a pod fits, and how many times. Pure.

It follows the scheduler's filters for resources, readiness, taints, the node selector and required node affinity.
Rules between pods (affinity, spread), volumes and host ports are not looked at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies, left, requested

Object = Mapping[str, Any]

_ENDED = ("Succeeded", "Failed")
_HOLD_OFF = ("NoSchedule", "NoExecute")


def places(nodes: Iterable[Object], pods: Iterable[Object], pod: Object) -> dict[str, int]:
    """How many more such pods each node has room for, by its name; nodes that it may not use are left out.

    Args:
        nodes: all Nodes.
        pods: all pods of the cluster.
        pod: the `spec` of the new pod.
    """
    taken: dict[str, list[Amounts]] = defaultdict(list)
    for other in pods:
        node = other["spec"].get("nodeName")
        if node and other.get("status", {}).get("phase") not in _ENDED:
            taken[node].append(requested(other["spec"]))
    each = requested(pod)
    found = {}
    for node in nodes:
        if why_not(node, pod) is None:
            name = node["metadata"]["name"]
            whole = amounts(node.get("status", {}).get("allocatable") or {})
            free = left(whole, taken[name])
            found[name] = copies(free, each)
    return found


def in_one_domain(places: Mapping[str, int], nodes: Iterable[Object], topology: str) -> dict[str, int]:
    """The same for the nodes of the domain with the most room: those with one value of the label `topology`."""
    domain = {node["metadata"]["name"]: _labels(node).get(topology) for node in nodes}
    room: Counter[str] = Counter()
    for name, count in places.items():
        if (value := domain.get(name)) is not None:
            room[value] += count
    best = max(room, key=lambda value: room[value], default=None)
    return {name: count for name, count in places.items() if best is not None and domain.get(name) == best}


def why_not(node: Object, pod: Object) -> str | None:
    """Why the scheduler would not use this node for this pod, whatever is free there; None if it would."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    ready = [one["status"] for one in status.get("conditions") or () if one["type"] == "Ready"]
    if ready != ["True"]:
        return "it is not ready"
    if spec.get("unschedulable"):
        return "it is cordoned"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _HOLD_OFF and not _tolerated(taint, pod.get("tolerations") or ()):
            return f"it has the taint {taint['key']}"
    labels = _labels(node)
    for name, value in (pod.get("nodeSelector") or {}).items():
        if labels.get(name) != value:
            return f"it has no label {name}={value}"
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    if terms is not None and not any(_matches(term, labels, node["metadata"]["name"]) for term in terms):
        return "its labels do not match the affinity"
    return None


def _tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    def fits(one: Mapping[str, Any]) -> bool:
        if one.get("effect") not in (None, "", taint["effect"]):
            return False
        if not one.get("key"):
            return one.get("operator") == "Exists"
        exists = one.get("operator", "Equal") == "Exists"
        same = (one.get("value") or "") == (taint.get("value") or "")
        return one["key"] == taint["key"] and (exists or same)

    return any(map(fits, tolerations))


def _matches(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    """A node selector term: all its expressions hold. One without any matches nothing."""
    of_labels, of_fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    fields = {"metadata.name": name}
    return bool(of_labels or of_fields) and (
        all(_holds(one, labels) for one in of_labels) and all(_holds(one, fields) for one in of_fields)
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, wanted = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                own, limit = int(value or ""), int("".join(wanted))
            except ValueError:
                return False
            return own > limit if operator == "Gt" else own < limit
    return False


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}
