"""Why the platform ended a pod (preempted, evicted, lost its node): by its conditions and the reason in its status.

A node may end a pod for using more than its own limit, which will happen again with the same program. That differs from
a pod that is taken away for other work.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

#: Why the platform takes pods away: for other work, or because their machine is removed (condition DisruptionTarget).
_PREEMPTED = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "ended by its node, which is short of something or shuts down",
}

#: The same condition if the node does not answer, is tainted, or is gone: the pod may still be running.
_NODE_GONE = ("DeletionByTaintManager", "DeletionByPodGC")

#: Kueue's words about a plain pod before it deletes it.
_TAKEN_BY_KUEUE = "TerminationTarget"

#: The conditions that are read here.
CONDITIONS = ("DisruptionTarget", _TAKEN_BY_KUEUE)

#: Why a node refuses, or ends, a pod: the reason in its status.
_BY_NODE = (
    "Preempting",
    "Evicted",
    "NodeShutdown",
    "Terminated",
    "Shutdown",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "TopologyAffinityError",
    "OutOf",
)

#: A kubelet's words, up to 1.37, about a pod that it evicts for exceeding its own limits. These are the size of a
#: volume, a container's local storage, and that of all containers together. The node itself is not short of anything.
_OVER_LIMIT = re.compile(
    r"exceeds the limit|exceeds the total limit of containers|exceeded its local ephemeral storage limit"
)


class Disruption(NamedTuple):
    """Why the platform ended a pod.

    Attributes:
        reason: in the cluster's words.
        preempted: whether it was taken away for other work, or its machine is removed or refuses it: that costs
            nothing.
        over_limit: whether the pod had used more than its own limit.
        node_gone: whether its node is gone, so that the pod may still run.
    """

    reason: str
    preempted: bool = False
    over_limit: bool = False
    node_gone: bool = False


def disruption_of(pod: dict[str, Any]) -> Disruption | None:
    """Why the platform ended this (slim) pod; None if it did not."""
    status, node = pod["status"], pod["spec"]["nodeName"]
    own = words(status["reason"], status["message"])
    if status["reason"] == "Evicted" and _OVER_LIMIT.search(status["message"] or ""):
        return Disruption(own or "Evicted", over_limit=True)
    for condition in status["conditions"]:
        if condition["type"] not in CONDITIONS or condition["status"] != "True":
            continue
        reason, message = condition.get("reason", ""), condition.get("message")
        if condition["type"] == _TAKEN_BY_KUEUE:
            return Disruption(message or reason or "taken back by Kueue", preempted=True)
        if reason in _NODE_GONE:
            return Disruption(f"its node {node} is gone ({message or reason})", node_gone=True)
        told = own if status["phase"] == "Failed" and status["message"] else message or reason
        why = _PREEMPTED.get(reason, "taken away by the cluster")
        return Disruption(words(why, told) or why, preempted=True)
    if status["reason"] == "NodeLost":
        return Disruption(f"its node {node} is gone", node_gone=True)
    if status["phase"] == "Failed" and status["reason"]:  # its containers' ends are not the pod's own reason
        return Disruption(own or status["reason"], preempted=status["reason"].startswith(_BY_NODE))
    return None


def words(*parts: str | None) -> str | None:
    """A reason and its message, as one line; None if both are missing."""
    return ": ".join(" ".join(part.split()) for part in parts if part and part.strip()) or None
