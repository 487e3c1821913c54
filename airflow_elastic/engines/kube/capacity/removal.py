"""Whether a node is going to be removed, or its pods are sent away. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_elastic.engines.kube.capacity.nodes import tolerated

Object = Mapping[str, Any]

CORDONED = "it is cordoned"
DELETED = "it is being deleted"

#: Taints with the effect NoSchedule that only come before a node is removed. One that ends with "/" is a prefix.
_BEFORE_REMOVAL = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "aws-node-termination-handler/",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
)

#: Taints for a node's trouble, which may pass.
_TROUBLE = (
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    *(f"node.kubernetes.io/{what}-pressure" for what in ("memory", "disk", "pid")),
    "node.kubernetes.io/network-unavailable",
)


def marks(node: Object) -> Iterator[str]:
    """The signs that a node is going to be removed, or is closed, in words."""
    if node["metadata"]["ends"]:
        yield DELETED
    if node["spec"]["unschedulable"]:
        yield CORDONED
    for taint in node["spec"]["taints"]:
        if _removes(taint):
            yield _words(taint)


def mark_for(node: Object, pod: Object) -> str | None:
    """Such a sign that holds for a pod with this `spec`; None if it may stay."""
    stays = {
        _words(taint)
        for taint in node["spec"]["taints"]
        if tolerated(taint, pod.get("tolerations") or (), forever=True)
    }
    return next((mark for mark in marks(node) if mark not in stays), None)


def _removes(taint: Mapping[str, Any]) -> bool:
    key = taint["key"]
    if key in _TROUBLE:
        return False
    if taint.get("effect") == "NoExecute":
        return True
    known = any(key == one or (one.endswith("/") and key.startswith(one)) for one in _BEFORE_REMOVAL)
    return taint.get("effect") == "NoSchedule" and known


def _words(taint: Mapping[str, Any]) -> str:
    return f"it has the taint {taint['key']}:{taint['effect']}"
