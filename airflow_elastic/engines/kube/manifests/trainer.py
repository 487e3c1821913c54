"""Finds the training container of a manifest's pod, if it has several containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.render.names import DEFAULT_CONTAINER


def training_container(
    containers: Sequence[Mapping[str, Any]], theirs: str | None, metadata: Mapping[str, Any]
) -> int:
    """The position of the training container.

    It is the one that the operator looks for by name, or the one that `kubectl.kubernetes.io/default-container` names.
    Or it is the only one with devices among its limits (`vendor.com/gpu`), or else the first.

    Args:
        containers: of the pod, at least one.
        theirs: the name that the operator looks for, if it does.
        metadata: of the pod.
    """
    named = (metadata.get("annotations") or {}).get(DEFAULT_CONTAINER)
    for name in filter(None, (theirs, named)):
        for i, one in enumerate(containers):
            if one.get("name") == name:
                return i
    with_devices = [i for i, one in enumerate(containers) if _has_devices(one)]
    return with_devices[0] if len(with_devices) == 1 else 0


def renamed(metadata: dict[str, Any], theirs: str | None) -> dict[str, Any]:
    """The pod's metadata without an annotation that names the training container, because that gets another name."""
    annotations = metadata.get("annotations") or {}
    if theirs is None or annotations.get(DEFAULT_CONTAINER) != theirs:
        return metadata
    rest = {name: value for name, value in annotations.items() if name != DEFAULT_CONTAINER}
    return {word: value for word, value in {**metadata, "annotations": rest}.items() if value}


def _has_devices(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    return any("/" in name for name in (resources.get("limits") or {}) if not name.startswith("hugepages"))
