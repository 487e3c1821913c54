"""What a pod waits for that has its node: images, init containers, sidecars that are to be there first.

Containers start one after the other, so what the first of them that is not there says is what the pod waits for.
"""

from __future__ import annotations

from typing import Any

from airflow_elastic.engines.kube.watch.taken import words
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

#: Reasons that say no more than that a container has not started.
_NOTHING = (None, "ContainerCreating", "PodInitializing")


def on_its_node(pod: dict[str, Any], container: str) -> tuple[Waiting, str | None]:
    """What this (slim) pod waits for, and in which words; None where its containers say nothing.

    Args:
        pod: which is on its node, and whose container that trains has not started.
        container: the one that trains.
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
    """What a container that holds up the others says of itself."""
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
