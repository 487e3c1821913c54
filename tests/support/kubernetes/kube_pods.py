"""Pods as API servers write them, for tests of what is read of them. Seen on Kubernetes 1.36 and 1.37."""

from __future__ import annotations

from typing import Any

from airflow_elastic.engines.kube.watch.pod_status import read_pod, slim
from airflow_elastic.spec.status import WorkerStatus

WHEN = "2026-01-01T10:00:00Z"
IDS = {"image": "i", "imageID": "", "restartCount": 0}


def running(name: str, **fields: Any) -> dict[str, Any]:
    """The status of a container that runs."""
    state = {"running": {"startedAt": WHEN}}
    return {"name": name, **IDS, "ready": True, "started": True, "lastState": {}, "state": state, **fields}


def ended(name: str, code: int, reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """The status of a container that has ended."""
    why = reason or ("Error" if code else "Completed")
    terminated = {"exitCode": code, "reason": why, "startedAt": WHEN, "finishedAt": WHEN, **fields}
    return {"name": name, **IDS, "ready": False, "lastState": {}, "state": {"terminated": terminated}}


def waiting(name: str, reason: str, message: str | None = None, **fields: Any) -> dict[str, Any]:
    """The status of a container that has not started."""
    why = {"reason": reason, **({"message": message} if message else {})}
    return {"name": name, **IDS, "ready": False, "lastState": {}, "state": {"waiting": why}, **fields}


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    """A condition of a pod."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": WHEN}


def pod(
    phase: str, *, node: str | None = "n1", spec: dict[str, Any] | None = None, **status: Any
) -> dict[str, Any]:
    """A pod whose training container is called `trainer`."""
    containers = [{"name": "trainer", "image": "i"}]
    whole = {"restartPolicy": "Never", "nodeName": node, "containers": containers, **(spec or {})}
    metadata = {"name": "fit-0", "uid": "u", "labels": {}, "creationTimestamp": WHEN}
    return {"metadata": metadata, "spec": whole, "status": {"phase": phase, **status}}


def worker(phase: str, **fields: Any) -> WorkerStatus:
    """What is read of such a pod."""
    return read_pod(slim(pod(phase, **fields)), "trainer", "node-0")
