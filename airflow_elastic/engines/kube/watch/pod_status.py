"""The status of a worker, by its pod, read purely.

A container's status shows its end about a second before the pod's phase does, so containers are read first. The agent's
report in the termination message says most. Without it, exit code and reason count; and the pod's conditions, if the
platform took the pod away.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_elastic.adapters.records.job_files import Result
from airflow_elastic.engines.kube.watch.disruption import CONDITIONS, Disruption, disruption_of, words
from airflow_elastic.engines.kube.watch.waits import on_its_node
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import RankError, Waiting, WorkerPhase, WorkerStatus

_PHASES = {
    "succeeded": WorkerPhase.SUCCEEDED,
    "failed": WorkerPhase.FAILED,
    "left": WorkerPhase.LEFT,
    "stopped": WorkerPhase.LOST,  # by somebody else, because nobody watches a job that we have ended
    "unattended": WorkerPhase.FAILED,
    "lost": WorkerPhase.LOST,
}

_DEFAULT_SCHEDULER = "default-scheduler"


def slim(pod: dict[str, Any]) -> dict[str, Any]:
    """The parts of a pod that are read; a triggerer may keep thousands."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    kept = ("name", "uid", "labels", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
    init = spec.get("initContainers") or ()
    return {
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {
            "nodeName": spec.get("nodeName"),
            "schedulingGates": spec.get("schedulingGates"),
            "schedulerName": spec.get("schedulerName"),
            "sidecars": [one["name"] for one in init if one.get("restartPolicy") == "Always"],
            "restarts": _restarts(spec),
            "limits": _limits(spec),
            "group": (spec.get("schedulingGroup") or {}).get("podGroupName"),
        },
        "status": {
            "phase": status.get("phase", "Pending"),
            "reason": status.get("reason"),
            "message": status.get("message"),
            "conditions": [c for c in status.get("conditions") or () if c["type"] in _CONDITIONS],
            "containers": [_container(c) for c in status.get("containerStatuses") or ()],
            "init": [_container(c) for c in status.get("initContainerStatuses") or ()],
        },
    }


_CONDITIONS = ("PodScheduled", *CONDITIONS)


def _restarts(spec: dict[str, Any]) -> dict[str, str]:
    """The restart policy of each ordinary container that its node may start again, by name."""
    whole = spec.get("restartPolicy", "Never")
    found = {one["name"]: one.get("restartPolicy", whole) for one in spec.get("containers") or ()}
    return {name: policy for name, policy in found.items() if policy != "Never"}


def _limits(spec: dict[str, Any]) -> dict[str, str]:
    """The memory limit of each container that has one, by name."""
    limits = {
        one["name"]: ((one.get("resources") or {}).get("limits") or {}).get("memory")
        for one in spec.get("containers") or ()
    }
    return {name: str(limit) for name, limit in limits.items() if limit is not None}


def _container(status: dict[str, Any]) -> dict[str, Any]:
    state = status.get("state") or {}
    ended = state.get("terminated") or (status.get("lastState") or {}).get("terminated")
    return {
        "name": status["name"],
        "state": state,
        "ended": ended,
        "ready": status.get("ready", False),
        "started": status.get("started"),
    }


def read_pod(pod: dict[str, Any], container: str, name: str) -> WorkerStatus:
    """The worker `name`, by its (slim) pod: only the training container counts, whatever else is in the pod."""
    node, status = pod["spec"]["nodeName"], pod["status"]
    main = next((one for one in status["containers"] if one["name"] == container), None)
    ended, by_platform = None if main is None else main["ended"], disruption_of(pod)
    if ended is not None:
        return _ended(name, node, ended, by_platform, _killed(pod, container, ended))
    if by_platform is not None and (by_platform.node_gone or status["phase"] == "Failed"):
        return _lost(name, node, by_platform)
    if status["phase"] == "Failed":
        if (init := _failed_init(pod)) is not None:
            error = _of_init(init)
            return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=error.error)
        told = words(status["reason"], status["message"]) or "it failed without a word"
        return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=told)
    if status["phase"] == "Succeeded":
        return WorkerStatus(name, WorkerPhase.SUCCEEDED, node=node)
    if main is not None and "running" in main["state"]:
        if pod["metadata"].get("deletionGracePeriodSeconds") == 0:
            # A finalizer of the Job's controller may keep the object for another second.
            return WorkerStatus(name, WorkerPhase.LOST, node=node, reason="its pod was deleted")
        return WorkerStatus(name, WorkerPhase.RUNNING, node=node)
    waiting, reason = _waiting(pod, container)
    return WorkerStatus(name, WorkerPhase.PENDING, node=node, waiting=waiting, reason=reason)


def failed_without_report(pod: dict[str, Any], container: str) -> list[str]:
    """Its failed containers without a report of our agent: their own output is all the evidence.

    They are the training container, or the init container that kept it from starting. Failures of other containers do
    not concern the run.
    """
    found = [one for one in pod["status"]["containers"] if one["name"] == container and one["ended"]]
    if not found and (init := _failed_init(pod)) is not None:
        found = [init]
    return [
        one["name"]
        for one in found
        if one["ended"]["exitCode"] != 0 and _result(one["ended"].get("message")) is None
    ]


def _lost(name: str, node: str | None, why: Disruption, errors: tuple[RankError, ...] = ()) -> WorkerStatus:
    return WorkerStatus(
        name,
        WorkerPhase.LOST,
        node=node,
        errors=errors,
        reason=why.reason,
        preempted=why.preempted,
        over_limit=why.over_limit,
    )


def _failed_init(pod: dict[str, Any]) -> dict[str, Any] | None:
    """The failed init container. Native sidecars do not count: they are restarted, and ended at the end."""
    init, sidecars = pod["status"]["init"], pod["spec"]["sidecars"]
    failed = (one for one in init if (one["ended"] or {}).get("exitCode") and one["name"] not in sidecars)
    return next(failed, None)


def _of_init(init: dict[str, Any]) -> RankError:
    ended = init["ended"]
    said = ended.get("message") or None
    return RankError(
        exit_code=ended["exitCode"],
        at=_when(ended),
        error=words(f"init container {init['name']} failed", _last_line(said)),
        traceback=said,
        out_of_memory=ended.get("reason") == "OOMKilled",
    )


def _killed(pod: dict[str, Any], container: str, ended: dict[str, Any]) -> str | None:
    """The cluster's words that a container was killed for memory, with its limit; None if it was not."""
    if ended.get("reason") != "OOMKilled":
        return None
    limit = pod["spec"]["limits"].get(container)
    return f"container {container} OOMKilled, " + (
        f"limit {limit}" if limit else "without a limit of its own"
    )


def _ended(
    name: str, node: str | None, ended: dict[str, Any], by_platform: Disruption | None, killed: str | None
) -> WorkerStatus:
    result = _result(ended.get("message"))
    code, reason = ended["exitCode"], ended.get("reason")
    why = None if by_platform is None or by_platform.node_gone else by_platform
    if result is not None:
        phase = _PHASES.get(result.outcome, WorkerPhase.FAILED)
        if why is not None and phase is not WorkerPhase.SUCCEEDED:
            return _lost(name, node, why, result.errors)
        return WorkerStatus(
            name,
            phase,
            node=node,
            errors=_with_memory(result.errors, killed),
            reason=result.reason,
            unattended=result.outcome == "unattended",
        )
    if why is not None:
        return _lost(name, node, why)
    if code == 0:
        return WorkerStatus(name, WorkerPhase.SUCCEEDED, node=node)
    if killed is not None:
        error = RankError(exit_code=code, at=_when(ended), out_of_memory=True, shortage=killed)
        return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)
    if code == 255 and reason == "Unknown":
        return WorkerStatus(
            name, WorkerPhase.LOST, node=node, reason=f"its node {node} went away, and came back"
        )
    said = ended.get("message") or None
    if reason == "ContainerStatusUnknown":
        return WorkerStatus(name, WorkerPhase.LOST, node=node, reason=words(reason, said))
    if reason in ("StartError", "ContainerCannotRun"):
        error = RankError(exit_code=127, at=_when(ended), error=said)
        return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)
    if code == 137:
        # The first process of the container is our agent. It was killed, so the worker is gone without a report.
        return WorkerStatus(
            name, WorkerPhase.LOST, node=node, reason="its first process was killed (exit code 137)"
        )
    error = RankError(exit_code=code, at=_when(ended), error=_last_line(said), traceback=said)
    return WorkerStatus(name, WorkerPhase.FAILED, node=node, errors=(error,), reason=reason)


def _with_memory(errors: tuple[RankError, ...], killed: str | None) -> tuple[RankError, ...]:
    """Reason and code of a container are independent: a child may have been killed for memory."""
    if killed is None:
        return errors
    if any(error.out_of_memory for error in errors):
        return tuple(replace(e, shortage=killed) if e.out_of_memory else e for e in errors)
    at = min((e.at for e in errors), default=0.0)
    return (RankError(out_of_memory=True, at=at, shortage=killed), *errors)


def _result(message: str | None) -> Result | None:
    try:
        return decode(Result, json.loads(message or ""))
    except (ValueError, SpecError):
        return None


def _waiting(pod: dict[str, Any], container: str) -> tuple[Waiting, str | None]:
    if pod["spec"]["schedulingGates"]:
        gates = ", ".join(gate["name"] for gate in pod["spec"]["schedulingGates"])
        return Waiting.QUEUED, f"held by {gates}"
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "PodScheduled" and condition["status"] != "True":
            return Waiting.CAPACITY, condition.get("message") or condition.get("reason")
    scheduler = pod["spec"].get("schedulerName") or _DEFAULT_SCHEDULER
    if pod["spec"]["nodeName"] is None and scheduler != _DEFAULT_SCHEDULER:
        return Waiting.QUEUED, f"the scheduler {scheduler} has not taken it up yet"
    return on_its_node(pod, container)


def _when(ended: dict[str, Any]) -> float:
    at = ended.get("finishedAt")
    return datetime.fromisoformat(at).timestamp() if at else 0.0


def _last_line(text: str | None) -> str | None:
    lines = (text or "").strip().splitlines()
    return lines[-1][:2000] if lines else None
