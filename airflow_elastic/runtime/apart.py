"""Objects of the user's own, in two halves: their tensors, and everything else, which says where these belong.

What such an object holds need not be what a new one holds: a history grows, a table gets keys. So the second half is
kept as one value, and not key by key, as a model's state is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Held:
    """Stands for a tensor that is kept apart under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Rest:
    """A state without its tensors."""

    value: Any


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state dict with what is no tensor (a module's extra state) as one value each."""
    return {name: one if isinstance(one, torch.Tensor) else Rest(one) for name, one in state.items()}


def unpacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict again."""
    return {name: one.value if isinstance(one, Rest) else one for name, one in state.items()}


def take_apart(state: Any) -> tuple[Rest, dict[str, torch.Tensor]]:
    """Split a state of dicts, lists and tuples; what lies in other containers stays in there."""
    tensors: dict[str, torch.Tensor] = {}

    def walk(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = value
            return Held(name)
        if type(value) is dict:
            return {key: walk(one, f"{name}/{key}") for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(one, f"{name}/{at}") for at, one in enumerate(value))
        return value

    return Rest(walk(state, "")), tensors


def put_together(rest: Rest, tensors: dict[str, torch.Tensor]) -> Any:
    """The state again."""

    def walk(value: Any) -> Any:
        if isinstance(value, Held):
            return tensors[value.name]
        if type(value) is dict:
            return {key: walk(one) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(one) for one in value)
        return value

    return walk(rest.value)
