"""Containers of a pod beside the training container: sidecars of any origin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


def held_by_sidecars(pods: Iterable[dict[str, Any]], container: str) -> list[str]:
    """The (slim) pods that a sidecar keeps on their nodes, with all reserved resources, after training has ended.

    An ordinary container that has not ended keeps its pod, also one that cannot start. A native sidecar (an init
    container with `restartPolicy: Always`) and an ephemeral container do not: their node ends them after the others.

    Args:
        pods: of a job.
        container: the training container.
    """
    return [pod["metadata"]["name"] for pod in pods if _is_held(pod, container)]


def _is_held(pod: dict[str, Any], container: str) -> bool:
    if pod["status"]["phase"] in ("Succeeded", "Failed"):
        return False
    found = {one["name"]: one for one in pod["status"]["containers"]}
    if container not in found or found.pop(container)["ended"] is None:
        return False
    restarts = pod["spec"]["restarts"]
    return any(_goes_on(one["state"].get("terminated"), restarts.get(name)) for name, one in found.items())


def _goes_on(ended: dict[str, Any] | None, restarts: str | None) -> bool:
    """Whether a container has not ended, or will be restarted by its policy (None: never)."""
    return ended is None or restarts == "Always" or (restarts == "OnFailure" and bool(ended["exitCode"]))
