"""What a pod says about its worker, read purely.

A container's end is seen in its status about a second before the pod's phase says so, so containers are read first.
What our own agent left in the termination message tells most; without it, exit code and reason; and where the platform
took the pod away, its conditions.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from airflow_elastic.adapters.jobfiles import Result
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import RankError, Waiting, WorkerPhase, WorkerStatus

_PHASES = {
    "succeeded": WorkerPhase.SUCCEEDED,
    "failed": WorkerPhase.FAILED,
    "left": WorkerPhase.LEFT,
    "stopped": WorkerPhase.LOST,  # by somebody else: nobody watches a job that we have told to end
    "unattended": WorkerPhase.FAILED,
    "lost": WorkerPhase.LOST,
}

#: Why the platform takes pods away: for a better use, or because their machine goes (condition DisruptionTarget).
_PREEMPTED = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "ended by its node, which is short of something or shuts down",
}

#: What Kueue says of a plain pod before it deletes it.
_TAKEN_BY_KUEUE = "TerminationTarget"

#: Why a node refuses, or ends, a pod: its status' own reason.
_REFUSED = (
    "Preempting",
    "Evicted",
    "NodeShutdown",
    "Shutdown",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "OutOf",
)

_DEFAULT_SCHEDULER = "default-scheduler"

_PULLING = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)


def slim(pod: dict[str, Any]) -> dict[str, Any]:
    """What is read of a pod; a triggerer may keep thousands."""
    metadata, status = pod["metadata"], pod.get("status", {})
    kept = ("name", "uid", "labels", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {
            "nodeName": pod["spec"].get("nodeName"),
            "schedulingGates": pod["spec"].get("schedulingGates"),
            "schedulerName": pod["spec"].get("schedulerName"),
        },
        "status": {
            "phase": status.get("phase", "Pending"),
            "reason": status.get("reason"),
            "message": status.get("message"),
            "conditions": [c for c in status.get("conditions", ()) if c["type"] in _CONDITIONS],
            "containers": [_container(c) for c in status.get("containerStatuses", ())],
            "init": [_container(c) for c in status.get("initContainerStatuses", ())],
        },
    }


_CONDITIONS = ("PodScheduled", "DisruptionTarget", _TAKEN_BY_KUEUE)


def _container(status: dict[str, Any]) -> dict[str, Any]:
    ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated")
    return {
        "name": status["name"],
        "state": status["state"],
        "ended": ended,
        "ready": status.get("ready", False),
    }


def read_pod(pod: dict[str, Any], container: str, name: str) -> WorkerStatus:
    """The worker `name` as its (slim) pod shows it."""
    node, status = pod["spec"]["nodeName"], pod["status"]
    main = next((one for one in status["containers"] if one["name"] == container), None)
    taken, lost = _taken(pod)
    if lost and (main is None or main["ended"] is None):
        return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=lost)
    if main is not None and main["ended"] is not None:
        return _ended(name, node, main["ended"], taken)
    failed_init = next((one for one in status["init"] if (one["ended"] or {}).get("exitCode")), None)
    if failed_init is not None and status["phase"] == "Failed":
        code, what = failed_init["ended"]["exitCode"], failed_init["name"]
        error = RankError(
            exit_code=code, at=_when(failed_init["ended"]), error=f"init container {what} failed"
        )
        return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), preempted=taken is not None)
    if status["phase"] == "Failed":
        words = " ".join(filter(None, (status["reason"], status["message"]))) or "it failed without a word"
        if taken or str(status["reason"]).startswith(_REFUSED):
            return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=taken or words, preempted=True)
        return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=words)
    if main is not None and "running" in main["state"]:
        return WorkerStatus(name, WorkerPhase.RUNNING, node=node)
    waiting, reason = _waiting(pod, main)
    return WorkerStatus(name, WorkerPhase.PENDING, node=node, waiting=waiting, reason=reason)


def failed_silently(pod: dict[str, Any], container: str) -> bool:
    """Whether its container failed and our agent has not said how: then its own output is all the evidence."""
    ended = [one["ended"] for one in pod["status"]["containers"] if one["name"] == container and one["ended"]]
    return any(one["exitCode"] != 0 and _result(one.get("message")) is None for one in ended)


def _taken(pod: dict[str, Any]) -> tuple[str | None, str | None]:
    """Why the platform took the pod away; and why it is lost, where its node is: nobody can tell what it still does."""
    for condition in pod["status"]["conditions"]:
        if condition["type"] == _TAKEN_BY_KUEUE and condition["status"] == "True":
            return condition.get("message") or condition.get("reason", "taken back by Kueue"), None
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            reason = condition.get("reason", "")
            if reason in _PREEMPTED:
                return f"{_PREEMPTED[reason]}: {condition.get('message', reason)}", None
            return None, f"its node {pod['spec']['nodeName']} is gone ({condition.get('message') or reason})"
    if pod["status"]["reason"] == "NodeLost":
        return None, f"its node {pod['spec']['nodeName']} is gone"
    return None, None


def _ended(name: str, node: str | None, ended: dict[str, Any], taken: str | None) -> WorkerStatus:
    result = _result(ended.get("message"))
    code, reason = ended["exitCode"], ended.get("reason")
    if result is not None:
        phase = _PHASES.get(result.outcome, WorkerPhase.FAILED)
        if taken and phase is not WorkerPhase.SUCCEEDED:
            return WorkerStatus(
                name, WorkerPhase.LOST, node=node, errors=result.errors, reason=taken, preempted=True
            )
        return WorkerStatus(
            name,
            phase,
            node=node,
            errors=_with_memory(result.errors, reason),
            reason=result.reason,
            unattended=result.outcome == "unattended",
        )
    if taken:
        return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=taken, preempted=True)
    if code == 0:
        return WorkerStatus(name, WorkerPhase.SUCCEEDED, node=node)
    if reason == "OOMKilled":
        error = RankError(exit_code=code, at=_when(ended), out_of_memory=True)
        return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)
    if code == 255 and reason == "Unknown":
        return WorkerStatus(
            name, WorkerPhase.LOST, node=node, reason=f"its node {node} went away, and came back"
        )
    said = ended.get("message") or None
    if reason in ("StartError", "ContainerCannotRun"):
        error = RankError(exit_code=127, at=_when(ended), error=said)
        return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)
    if code == 137:
        # The first process of the container was killed, which is ours: the worker is gone without a word.
        return WorkerStatus(
            name, WorkerPhase.LOST, node=node, reason="its first process was killed (exit code 137)"
        )
    error = RankError(exit_code=code, at=_when(ended), error=_last_line(said), traceback=said)
    return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)


def _with_memory(errors: tuple[RankError, ...], reason: str | None) -> tuple[RankError, ...]:
    """Reason and code of a container are independent: what was killed for memory may have been a child."""
    if reason != "OOMKilled" or any(error.out_of_memory for error in errors):
        return errors
    return (RankError(out_of_memory=True, at=min((e.at for e in errors), default=0.0)), *errors)


def _result(message: str | None) -> Result | None:
    try:
        return decode(Result, json.loads(message or ""))
    except (ValueError, SpecError):
        return None


def _waiting(pod: dict[str, Any], main: dict[str, Any] | None) -> tuple[Waiting, str | None]:
    if pod["spec"]["schedulingGates"]:
        gates = ", ".join(gate["name"] for gate in pod["spec"]["schedulingGates"])
        return Waiting.QUEUED, f"held by {gates}"
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return Waiting.CAPACITY, condition.get("message") or condition.get("reason")
    scheduler = pod["spec"].get("schedulerName") or _DEFAULT_SCHEDULER
    if pod["spec"]["nodeName"] is None and scheduler != _DEFAULT_SCHEDULER:
        return Waiting.QUEUED, f"the scheduler {scheduler} has not taken it up yet"
    state = (main or {}).get("state", {}).get("waiting", {})
    reason, text = state.get("reason"), state.get("message")
    words = ": ".join(filter(None, (reason, text))) or None
    if reason in _PULLING or "pull" in str(text).lower():
        return Waiting.PULLING, words
    return Waiting.STARTING, None if reason in (None, "ContainerCreating", "PodInitializing") else words


def _when(ended: dict[str, Any]) -> float:
    at = ended.get("finishedAt")
    return datetime.fromisoformat(at).timestamp() if at else 0.0


def _last_line(text: str | None) -> str | None:
    lines = (text or "").strip().splitlines()
    return lines[-1][:2000] if lines else None
