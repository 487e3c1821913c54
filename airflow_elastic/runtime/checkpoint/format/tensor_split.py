"""Split the state of an object of the script into its tensors, and a rest that says where each tensor belongs.

Large numpy arrays count as tensors, with the same memory. They are copied, not pickled: training would wait several
times as long for that.

Such a state changes its shape: a history grows, a table gets keys. So the rest is kept as one value, and not key by
key as a model's state is.
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
    """Stands for a tensor that is stored separately under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class HeldArray:
    """Stands for a numpy array that is stored separately as a tensor under this name."""

    name: str


#: The names of arrays begin with this, those of tensors with a slash.
_ARRAY = "array:"

_LARGE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Rest:
    """A state without its tensors."""

    value: Any


def packed(state: Mapping[str, Any]) -> dict[str, Any]:
    """A model's state dict, with each value that is no tensor (mostly extra state of modules) as a `Rest`."""
    return {name: one if isinstance(one, torch.Tensor) else Rest(one) for name, one in state.items()}


def unpacked(state: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `packed`."""
    return {name: one.value if isinstance(one, Rest) else one for name, one in state.items()}


def split_tensors(state: Any) -> tuple[Rest, dict[str, torch.Tensor]]:
    """Split a state of dicts (OrderedDicts, too), lists and tuples; tensors in other objects stay there."""
    tensors: dict[str, torch.Tensor] = {}

    def put(name: str, tensor: torch.Tensor) -> str:
        if name in tensors:  # keys of different types, as 1 and "1", have the same name
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
    """A tensor with the memory of a large array of numbers; None for anything else, which is pickled."""
    if type(value) is not numpy.ndarray or value.nbytes < _LARGE_BYTES:
        return None
    if not (value.flags.c_contiguous and value.flags.writeable):  # its strides or flags would be lost
        return None
    try:
        return torch.from_numpy(value)
    except (TypeError, ValueError):  # torch does not have its dtype or byte order
        return None


def without_arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of `split_tensors` that a checkpoint may be read into. Not arrays: other code may share them."""
    return {name: one for name, one in tensors.items() if not name.startswith(_ARRAY)}


def join_tensors(rest: object, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Undo `split_tensors`.

    Args:
        rest: a Rest, unless another program has written the checkpoint.
        tensors: by the names in it.

    Raises:
        InvalidInput: `rest` is no Rest, or names other tensors.
    """

    def back(value: Any, name: str) -> Any:
        if not isinstance(value, Held | HeldArray):
            return value
        if value.name not in tensors:
            raise InvalidInput(f"names a tensor, {value.name!r}, that the checkpoint does not have")
        tensor = tensors[value.name]
        return tensor.numpy() if isinstance(value, HeldArray) else tensor

    if not isinstance(rest, Rest):
        raise InvalidInput(f"is a {type(rest).__name__}, not a state that airflow-elastic writes")
    return _walk(rest.value, back)


def _walk(value: Any, leaf: Callable[[Any, str], Any], name: str = "") -> Any:
    """A copy in which each leaf is `leaf(value, path)`."""
    if isinstance(value, dict):
        changed = copy.copy(value)  # keeps its class and attributes
        for key, one in value.items():
            changed[key] = _walk(one, leaf, f"{name}/{key}")
        return changed
    if type(value) in (list, tuple):
        return type(value)(_walk(one, leaf, f"{name}/{at}") for at, one in enumerate(value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_walk(one, leaf, f"{name}/{at}") for at, one in enumerate(value)))
    return leaf(value, name)
