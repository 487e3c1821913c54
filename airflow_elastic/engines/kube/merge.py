"""Laying one manifest over another, as a strategic merge patch does it for pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Lists whose items have an identity are merged item by item; by which field, Kubernetes' own types say.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}


def overlay(base: Any, over: Any, field: str = "") -> Any:
    """`over` laid over `base`; neither is changed.

    Mappings are merged key by key, and None removes a key. Lists with an identity (MERGE_KEYS) are merged item by item,
    new items going last; all other lists, and plain values, are replaced.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = {
            key: overlay(value, over[key], key) if key in over else value for key, value in base.items()
        }
        merged |= {key: value for key, value in over.items() if key not in base}
        return {key: value for key, value in merged.items() if value is not None}
    identity = MERGE_KEYS.get(field)
    if identity and isinstance(base, list | tuple) and isinstance(over, list | tuple):
        return _by_identity(base, over, identity)
    return over


def _by_identity(base: Any, over: Any, identity: str) -> list[Any]:
    items = {item.get(identity): item for item in base}
    for item in over:
        key = item.get(identity)
        items[key] = overlay(items[key], item) if key in items else item
    return list(items.values())
