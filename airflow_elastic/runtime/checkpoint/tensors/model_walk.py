"""Look at all modules of a model once for a save: training waits for it, and torch would walk through them four times.

Names of parameters, and the origins of a state dict's tensors, follow from the structure of the model. They are kept
until it changes. The first time, torch's own methods are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.fsdp import FSDPModule

_Module = torch.nn.Module

#: Methods that walk through modules, and those that save. A class that overrides one of them is not looked into here.
_WALKS = ("modules", "named_modules", "parameters", "named_parameters", "_named_members")
_SAVES = ("state_dict", "_save_to_state_dict", "get_extra_state")
_OWN_WAYS = (*_WALKS, *_SAVES)


@dataclass
class Structure:
    """What follows from the structure of a model.

    Attributes:
        look: types of all modules, and names of what they have.
        ids: identities of all parameters.
        named: names of the parameters as in `named_parameters`, and a function that takes them from all parameters.
        saved: keys of the state dict, and a function that takes its tensors from all parameters and buffers. None if it
            is not known yet.
        words: a place for others to keep what follows from this, too.
    """

    look: list[object]
    ids: list[int]
    named: tuple[list[str], Callable[[Sequence[Any]], Sequence[Any]]]
    saved: tuple[list[str], Callable[[Sequence[Any]], Sequence[Any]]] | None = None
    words: dict[str, Any] = field(default_factory=dict)


_known: WeakKeyDictionary[_Module, Structure] = WeakKeyDictionary()


class ModelWalk:
    """One look at a model.

    Attributes:
        kinds: classes of all modules.
        is_plain: whether no module has hooks or methods of its own for saving.
        structure: what is known of its structure; None if a class has its own way to walk through modules.
    """

    def __init__(self, model: _Module) -> None:
        self._model = model
        self.again()

    def again(self) -> None:
        """Look again, as the model may have changed."""
        self._visit()
        if any(issubclass(kind, FSDPModule) for kind in self.kinds):
            # After a forward pass, FSDP2 leaves the root module unsharded, with other parameters.
            for module in self._modules:
                if isinstance(module, FSDPModule):
                    module.reshard()
            self._visit()
        self.structure = self._structure()

    def _visit(self) -> None:
        self._modules, self._parameters, self._buffers = [self._model], list[Any](), list[Any]()
        self._look: list[object] = []
        self.is_plain = True
        try:
            self._collect()
        except KeyError:  # a script module keeps everything elsewhere
            self._modules, self._look, self.is_plain = [*self._model.modules()], [], False
        self.kinds = {*map(type, self._modules)}

    def _collect(self) -> None:
        seen = {id(self._model)}
        for module in self._modules:  # grows
            own = module.__dict__
            inner, parameters, buffers = own["_modules"], own["_parameters"], own["_buffers"]
            self._look += (type(module), len(inner), *inner, *map(id, inner.values()), *parameters)
            self._parameters += parameters.values()
            if buffers:
                self._look += (*buffers, frozenset(own["_non_persistent_buffers_set"]))
                self._look += [one is None for one in buffers.values()]
                self._buffers += buffers.values()
            if own["_state_dict_hooks"] or own["_state_dict_pre_hooks"]:
                self.is_plain = False
            if not own.keys().isdisjoint(_OWN_WAYS):
                raise KeyError
            for each in inner.values():
                if each is not None and id(each) not in seen:
                    seen.add(id(each))
                    self._modules.append(each)

    def _structure(self) -> Structure | None:
        if not self._look or not all(map(_walks_as_torch, self.kinds)):
            return None
        ids = [*map(id, self._parameters)]
        known = _known.get(self._model)
        if known is not None and known.ids == ids and known.look == self._look:
            return known
        at = {one: number for number, one in enumerate(ids)}
        named = dict(self._model.named_parameters())
        take = _items([at[id(one)] for one in named.values()])
        _known[self._model] = found = Structure(self._look, ids, ([*named], take))
        return found

    def named_parameters(self) -> tuple[Sequence[str], Sequence[torch.Tensor]]:
        """The names and parameters of `named_parameters`."""
        if self.structure is None:
            named = dict(self._model.named_parameters())
            return [*named], [*named.values()]
        names, take = self.structure.named
        return names, take(self._parameters)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any] | None:
        """The model's state dict; None if one of its modules saves in its own way."""
        if self.structure is None or not self.is_plain or not all(map(_saves_as_torch, self.kinds)):
            return None
        if self.structure.saved is None:
            self.structure.saved = self._saved()
        keys, take = self.structure.saved
        return dict(
            zip(keys, [one.detach() for one in take([*self._parameters, *self._buffers])], strict=True)
        )

    def _saved(self) -> tuple[list[str], Callable[[Sequence[Any]], Sequence[Any]]]:
        """Where the state dict has its tensors from: as torch's method, with what each module has."""
        at = {id(module): number for number, module in enumerate(self._modules)}
        begins = [0, len(self._parameters)]
        places: list[tuple[int, int]] = []
        for module in self._modules:
            places.append((begins[0], begins[1]))
            begins = [begins[0] + len(module._parameters), begins[1] + len(module._buffers)]
        keys: list[str] = []
        numbers: list[int] = []

        def add(module: _Module, prefix: str) -> None:
            first, second = places[at[id(module)]]
            for number, (name, parameter) in enumerate(module._parameters.items()):
                if parameter is not None:
                    keys.append(prefix + name)
                    numbers.append(first + number)
            for number, (name, buffer) in enumerate(module._buffers.items()):
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    keys.append(prefix + name)
                    numbers.append(second + number)
            for name, inner in module._modules.items():
                if inner is not None:
                    add(inner, f"{prefix}{name}.")

        add(self._model, "")
        return keys, _items(numbers)


@cache
def _walks_as_torch(kind: type[_Module]) -> bool:
    return all(getattr(kind, name) is getattr(_Module, name) for name in _WALKS)


@cache
def _saves_as_torch(kind: type[_Module]) -> bool:
    return all(getattr(kind, name) is getattr(_Module, name) for name in _SAVES)


def _items(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A fast function that takes the items with these numbers."""
    if len(numbers) < 2:
        return lambda items: [items[number] for number in numbers]
    return itemgetter(*numbers)
