"""Merges one manifest into another, as a strategic merge patch does it for pods."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

#: The fields that identify the items of a list, by Kubernetes' own types: such lists are merged item by item.
MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}

#: The default of an identity's field.
_DEFAULTS = {"protocol": "TCP"}


def overlay(base: Any, over: Any, field: str = "") -> Any:
    """`over` merged into `base`; neither is changed.

    Mappings are merged key by key, and None removes a key. Lists with an identity (MERGE_KEYS) are merged item by item,
    and new items go last. All other lists, and plain values, are replaced. A variable replaces one of its name, and a
    volume one with another source: each has one of several forms (`value`, `valueFrom`), and never two.
    """
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        merged = {
            key: overlay(value, over[key], key) if key in over else value for key, value in base.items()
        }
        merged |= {key: value for key, value in over.items() if key not in base}
        return {key: value for key, value in merged.items() if value is not None}
    if field in MERGE_KEYS and isinstance(base, list | tuple) and isinstance(over, list | tuple):
        return _by_identity(base, over, field)
    return over


def _by_identity(base: Any, over: Any, field: str) -> list[Any]:
    """Each item of `over` is merged into one of `base`; several with one identity stay several."""

    def identity(item: Mapping[str, Any]) -> Hashable:
        return tuple(item.get(name, _DEFAULTS.get(name)) for name in MERGE_KEYS[field])

    items: list[Any] = list({identity(item): item for item in base}.values())
    places = {identity(item): place for place, item in enumerate(items)}
    for item in over:
        place = places.pop(identity(item), None)
        if place is None:
            items.append(item)
            continue
        is_another = field == "env" or (field == "volumes" and items[place].keys() != item.keys())
        items[place] = item if is_another else overlay(items[place], item)
    return items
