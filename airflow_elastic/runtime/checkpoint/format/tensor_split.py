"""Objects of the user's own, in two halves: their tensors, and everything else, which says where these belong.

Large arrays of numpy's are tensors here, of the same memory: they are copied, and not pickled, for which training would
wait several times as long.

What such an object holds need not be what a new one holds: a history grows, a table gets keys. So the second half is
kept as one value, and not key by key, as a model's state is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy
import torch

from airflow_elastic.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Held:
    """Stands for a tensor that is kept apart under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class HeldArray:
    """Stands for an array of numpy's that is kept apart as a tensor under this name."""

    name: str


#: Names of arrays among those of tensors begin with this; all others with a slash.
_ARRAY = "array:"

_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Rest:
    """A state without its tensors."""

    value: Any


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state dict with what is no tensor (a module's extra state, as a rule) as one value each."""
    return {name: one if isinstance(one, torch.Tensor) else Rest(one) for name, one in state.items()}


def unpacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state dict again."""
    return {name: one.value if isinstance(one, Rest) else one for name, one in state.items()}


def split_tensors(state: Any) -> tuple[Rest, dict[str, torch.Tensor]]:
    """Split a state of dicts (a module's OrderedDict is one), lists and tuples; what is in others stays there."""
    tensors: dict[str, torch.Tensor] = {}

    def put(name: str, tensor: torch.Tensor) -> str:
        if name in tensors:  # keys of several types may be written alike
            name = next(other for at in count(1) if (other := f"{name}~{at}") not in tensors)
        tensors[name] = tensor
        return name

    def apart(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return Held(put(name, value))
        if (tensor := _of_array(value)) is not None:
            return HeldArray(put(_ARRAY + name, tensor))
        return value

    return Rest(_walk(state, apart)), tensors


def _of_array(value: Any) -> torch.Tensor | None:
    """A large array of numbers, of its own memory; None for anything else, which is pickled."""
    if type(value) is not numpy.ndarray or value.nbytes < _LARGE_BYTES:
        return None
    if not (value.flags.c_contiguous and value.flags.writeable):  # it would come back laid out in another way
        return None
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):  # of a dtype, or an order of bytes, that torch does not have
        return None


def without_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of `split_tensors` that may be read into: an array may be somebody else's, too."""
    return {name: one for name, one in tensors.items() if not name.startswith(_ARRAY)}


def join_tensors(rest: object, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The state again.

    Args:
        rest: a Rest, unless somebody else has written the checkpoint.
        tensors: what it names.

    Raises:
        InvalidInput: it is none, or names others.
    """

    def back(value: Any, name: str) -> Any:
        if not isinstance(value, Held | HeldArray):
            return value
        if value.name not in tensors:
            raise InvalidInput(f"names a tensor, {value.name!r}, that the checkpoint does not have")
        tensor = tensors[value.name]
        return tensor.numpy() if isinstance(value, HeldArray) else tensor

    if not isinstance(rest, Rest):
        raise InvalidInput(f"is a {type(rest).__name__}, and no state as airflow-elastic writes them")
    return _walk(rest.value, back)


def _walk(value: Any, leaf: Callable[[Any, str], Any], name: str = "") -> Any:
    """The same with its leaves changed, each of which is given its path."""
    if isinstance(value, dict):
        changed = copy.copy(value)  # of its own class, with what else it carries
        for key, one in value.items():
            changed[key] = _walk(one, leaf, f"{name}/{key}")
        return changed
    if type(value) in (list, tuple):
        return type(value)(_walk(one, leaf, f"{name}/{at}") for at, one in enumerate(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_walk(one, leaf, f"{name}/{at}") for at, one in enumerate(value)))
    return leaf(value, name)
