"""A state's leaves by name, as in torch's `flatten_state_dict`, in a third of the time: training waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_PLAIN = {str, int, float, bool, type(None)}
_TENSORS = {torch.Tensor, torch.nn.Parameter}


def flattened(state: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of nested dicts and lists by their paths, joined by dots.

    A list is a leaf unless there is a tensor or a dict in it; a tuple always is.

    Raises:
        ValueError: two have the same name.
    """
    flat: dict[str, Any] = {}
    for key, value in state.items():
        _walk(str(key), value, flat)
    return flat


def _walk(path: str, value: Any, flat: dict[str, Any]) -> None:
    if not isinstance(value, torch.Tensor):  # most are
        if isinstance(value, Mapping):
            for key, one in value.items():
                _walk(f"{path}.{key!s}", one, flat)  # numpy's numbers have a format of their own
            return
        if isinstance(value, list) and _has_leaves(value):
            for at, one in enumerate(value):
                _walk(f"{path}.{at}", one, flat)
            return
    if path in flat:
        raise ValueError(f"a state has two values by the name {path}")
    flat[path] = value


def leaves_of(state: Mapping[str, Any]) -> tuple[list[object], list[Any]]:
    """The values of `flattened` in its order, and a structure: two states with equal structures have equal paths.

    This takes half the time. It does not look for equal names.
    """
    structure: list[object] = []
    leaves: list[Any] = []
    _collect("", 0, state, structure, leaves)
    return structure, leaves


def _collect(
    key: object, depth: int, value: Mapping[Any, Any], structure: list[object], leaves: list[Any]
) -> None:
    # The depth says which of the containers before this one is around it.
    try:
        ",".join(value)
        structure += (depth, key, *value)
    except TypeError:  # keys that are no strings may be equal, and have different names
        structure += (depth, key, *map(str, value))
    values = value.values()
    if {*map(type, values)} <= _TENSORS:  # mostly; to look at each takes longer
        leaves += values
        return
    for name, one in value.items():
        if isinstance(one, torch.Tensor):
            leaves.append(one)
        elif type(one) is dict or isinstance(one, Mapping):
            _collect(str(name), depth + 1, one, structure, leaves)
        elif isinstance(one, list) and _has_leaves(one):
            _collect(str(name), depth + 1, dict(enumerate(one)), structure, leaves)
        else:
            leaves.append(one)


def _has_leaves(value: list[Any]) -> bool:
    if {*map(type, value)} <= _PLAIN:  # the names of all parameters, mostly
        return False
    return any(
        isinstance(one, torch.Tensor | Mapping) or (isinstance(one, list) and _has_leaves(one))
        for one in value
    )
