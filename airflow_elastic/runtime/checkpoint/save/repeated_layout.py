"""Find the places of states one after another. They are kept as long as the tensors look the same: training waits.

Before each save all tensors are compared with those of the save before, by name, type, shape and dtype. So is which of
them share memory. Everything else that places depend on follows from these. No tensor is kept: a script can let go of
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.flatten import leaves_of
from airflow_elastic.runtime.checkpoint.format.values import to_bytes
from airflow_elastic.runtime.checkpoint.save.layout import Layout, Places
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage
from airflow_elastic.spec.errors import InvalidInput

#: Tensors of these types look different if they are different.
_KNOWN = {torch.Tensor, torch.nn.Parameter}

_MODEL = "model"

#: Values of these types never change, so their bytes can be kept.
_UNCHANGING = (int, float, bool, str, type(None))

_Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class _Look:
    """How a state looks. Two states that look the same have the same places.

    Attributes:
        structure: from `leaves_of`.
        types: of all leaves.
        shapes: of all tensors; of sharded ones, of this rank's part.
        dtypes: of all tensors.
        devices: of all tensors.
        specs: how the sharded ones are sharded.
        ties: the tensors that share an address with another one.
        known: for each tensor of the model, whether it is in memory of a parameter.
    """

    structure: list[object]
    types: list[type]
    shapes: list[torch.Size]
    dtypes: list[torch.dtype]
    devices: list[torch.device]
    specs: list[Any]
    ties: list[Any]
    known: list[bool]


@dataclass
class RepeatedLayout:
    """Lays out the states of one rank.

    Args:
        make: lays out a state with the parameters of its model, without any knowledge of earlier ones.
    """

    make: Callable[[Mapping[str, Any], Sequence[torch.Tensor]], Layout]
    _look: _Look | None = None
    _places: Places | None = None
    _kept: list[tuple[Any, bytes]] = field(default_factory=list)
    _memory: _ParameterMemory = field(default_factory=lambda: _ParameterMemory(()))

    def of(self, state: Mapping[str, Any], parameters: Sequence[torch.Tensor]) -> Layout:
        """The layout of a state: the same as `make` would return.

        Args:
            state: nested dicts and lists, with tensors and other values as leaves. The weights are below "model".
            parameters: of the model.

        Raises:
            InvalidInput: as `make`.
        """
        leaves: list[Any] = []
        look = self._look_at(state, parameters, leaves)
        if look is not None and self._places is not None and look == self._look:
            with contextlib.suppress(InvalidInput):  # `make` decides whether a value may be left out
                again = self._places.of(leaves, self._data(self._places, leaves))
                if again is not None:
                    return again
        self._look = self._places = None
        layout = self.make(state, parameters)
        if look is not None and layout.places.reusable:
            self._look, self._places = look, layout.places
            data = (text for _, text in layout.blobs)
            own = (_kept(leaves[value.leaf]) for value in layout.places.values)
            self._kept = [*zip(own, data, strict=True)]
        return layout

    def _look_at(
        self, state: Mapping[str, Any], parameters: Sequence[torch.Tensor], leaves: list[Any]
    ) -> _Look | None:
        """How a state looks; None if it has tensors of other kinds, or without memory. Adds its values to `leaves`."""
        structure: list[object] = []
        ties: list[Any] = []
        known: list[bool] = []
        try:
            for key, value in state.items():
                own, values = leaves_of({key: value})
                structure += own
                leaves += values
                if key == _MODEL or key.startswith("other."):
                    addresses = [*map(_Tensor.data_ptr, _local(values, [*map(type, values)]))]
                    ties += _shared(key, addresses, values)
                    if key == _MODEL:
                        self._memory = self._memory.now(parameters)
                        known = [*map(self._memory.has, addresses)]
            types = [*map(type, leaves)]
            tensors = _local(leaves, types)
            if not {*map(type, tensors)} <= _KNOWN:
                return None
            return _Look(
                structure=structure,
                types=types,
                shapes=[*map(_Tensor.size, tensors)],
                dtypes=[one.dtype for one in tensors],
                devices=[one.device for one in tensors],
                specs=[one._spec for one in leaves if type(one) is DTensor] if DTensor in types else [],
                ties=ties,
                known=known,
            )
        except (RuntimeError, ValueError):  # sparse, lazy or fake
            return None

    def _data(self, places: Places, leaves: Sequence[Any]) -> list[bytes]:
        """The values, serialised. Those that are the same objects as in the save before are not serialised again."""
        data = []
        for number, (value, (former, _)) in enumerate(zip(places.values, self._kept, strict=True)):
            now = leaves[value.leaf]
            if now is not former:
                self._kept[number] = _kept(now), to_bytes(value.key, now)
            data.append(self._kept[number][1])
        return data


#: Stands for a value that may change.
_CHANGING = object()


def _kept(value: Any) -> Any:
    is_tuple = type(value) is tuple and all(type(one) in _UNCHANGING for one in value)
    return value if is_tuple or type(value) in _UNCHANGING else _CHANGING


def _local(values: Sequence[Any], types: Sequence[type]) -> Sequence[torch.Tensor]:
    """The tensors among these values; of sharded ones, this rank's parts."""
    kinds = {*types}
    if kinds <= _KNOWN:
        return values
    if not any(issubclass(kind, _Tensor) for kind in kinds - _KNOWN):
        return [*compress(values, map(_KNOWN.__contains__, types))]
    return [one._local_tensor if type(one) is DTensor else one for one in values if isinstance(one, _Tensor)]


def _shared(key: str, addresses: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """The tensors that share an address with another one: only some of them are tied."""
    if len({*addresses}) == len(addresses):
        return []
    first: dict[int, int] = {}
    pairs = [(number, first.setdefault(one, number)) for number, one in enumerate(addresses)]
    several = {one for number, one in pairs if one != number}
    tensors = _local(values, [*map(type, values)])
    return [
        (key, number, one, addresses[one] != 0, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        for (number, one), tensor in zip(pairs, tensors, strict=True)
        if one in several
    ]


class _ParameterMemory:
    """The memory of parameters, which shows what is a buffer. It is looked up again only if it is another one."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._begins, self._sizes = _extent_of(parameters)
        self._known, self._shared = {*self._begins} - {0}, SharedStorage(parameters)

    def now(self, parameters: Sequence[torch.Tensor]) -> _ParameterMemory:
        """That of these parameters: the same object if it is the same memory."""
        own = _local(parameters, [*map(type, parameters)])
        return self if (self._begins, self._sizes) == _extent_of(own) else _ParameterMemory(own)

    def has(self, address: int) -> bool:
        """Whether a tensor at this address begins in this memory."""
        return address in self._known or self._shared.holds(address)


def _extent_of(tensors: Sequence[torch.Tensor]) -> tuple[list[int], list[int]]:
    return [*map(_Tensor.data_ptr, tensors)], [one.nbytes for one in tensors]
