"""What a pod with a node waits for: images, init containers, and sidecars that start first.

Containers start one after the other, so the pod waits for the first one that has not started.
"""

from __future__ import annotations

from typing import Any

from airflow_elastic.engines.kube.watch.disruption import words
from airflow_elastic.spec.status import Waiting

_PULLING = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)

#: Reasons that only say that a container has not started.
_NOTHING = (None, "ContainerCreating", "PodInitializing")


def on_its_node(pod: dict[str, Any], container: str) -> tuple[Waiting, str | None]:
    """What this (slim) pod waits for, and the words for it; None if its containers say nothing.

    Args:
        pod: on its node, with a training container that has not started.
        container: the training container.
    """
    status, sidecars = pod["status"], pod["spec"]["sidecars"]
    for one in status["init"]:
        if not _has_passed(one, is_sidecar=one["name"] in sidecars):
            kind = "sidecar" if one["name"] in sidecars else "init container"
            return _told(one, f"{kind} {one['name']}")
    main = [one for one in status["containers"] if one["name"] == container]
    others = [one for one in status["containers"] if one["name"] != container]
    for one in (*main, *others):
        told = _told(one, "" if one in main else f"container {one['name']}")
        if told[1] is not None and "waiting" in one["state"]:
            return told
    return Waiting.STARTING, None


def _has_passed(one: dict[str, Any], *, is_sidecar: bool) -> bool:
    state = one["state"]
    if is_sidecar:
        return "running" in state and one["started"] is not False
    return (state.get("terminated") or {}).get("exitCode") == 0


def _told(one: dict[str, Any], whose: str) -> tuple[Waiting, str | None]:
    """The words of a container that holds up the others."""
    state = one["state"]
    if "running" in state:
        said = "is running" if one["started"] is not False else "is running, and has not started up yet"
        return Waiting.STARTING, f"{whose} {said}"
    if "terminated" in state:
        return Waiting.STARTING, f"{whose} ended with exit code {state['terminated']['exitCode']}"
    waiting = state.get("waiting") or {}
    reason, text = waiting.get("reason"), waiting.get("message")
    if reason in _NOTHING and not text:
        return Waiting.STARTING, None
    if reason == "CrashLoopBackOff" and one["ended"] is not None:
        text = f"{text or 'it is started again'} (exit code {one['ended']['exitCode']})"
    pulling = reason in _PULLING or "pull" in str(text).lower()
    return (Waiting.PULLING if pulling else Waiting.STARTING), words(whose, reason, text)
