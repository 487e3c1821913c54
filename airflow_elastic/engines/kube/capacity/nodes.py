"""Which nodes a pod fits, and how many times. Pure.

It follows the scheduler's filters for resources, readiness, taints, the node selector and required node affinity.
Rules between pods (affinity, spread), volumes and host ports are not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

_HOLD_OFF = ("NoSchedule", "NoExecute")


def in_one_domain(
    places: Mapping[str, int], nodes: Mapping[str, Object], topology: str, own: Iterable[str] = ()
) -> dict[str, int]:
    """The same for the nodes of one domain: those with one value of the label `topology`.

    It is the domain of the nodes `own`, or else the one with the most room.
    """
    domain = {name: _labels(node).get(topology) for name, node in nodes.items()}
    used = {domain.get(name) for name in own} - {None}
    if used:
        return {name: count for name, count in places.items() if domain.get(name) in used}
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
        if taint.get("effect") in _HOLD_OFF and not tolerated(taint, pod.get("tolerations") or ()):
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


def tolerated(
    taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]], *, forever: bool = False
) -> bool:
    """Whether a pod with these tolerations may run in spite of a taint; with `forever`, without an end."""

    def fits(one: Mapping[str, Any]) -> bool:
        if forever and one.get("tolerationSeconds") is not None:
            return False
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
