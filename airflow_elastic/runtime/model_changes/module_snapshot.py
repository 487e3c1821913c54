"""Snapshots of modules, optimizers and other objects, to restore them in place; without the numbers in tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from airflow_elastic.runtime.checkpoint.optimizers.composite import innermost
from airflow_elastic.runtime.model_changes.tensor_snapshot import ContainerSnapshot

_OWN = ("_parameters", "_buffers", "_modules")

#: Other attributes of a module that belong to these, and its hooks.
_BESIDE = ("_non_persistent_buffers_set", *(name for name in vars(torch.nn.Module()) if "hook" in name))


class ModuleSnapshot:
    """One module, without its submodules. In a TorchScript module only tensors can change."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module, self._training, self._kind = module, module.training, type(module)
        self._is_script = isinstance(module, torch.jit.ScriptModule)
        self._parts: dict[str, ContainerSnapshot] = {}
        self._has_extra = False
        if not self._is_script:
            own = vars(module)
            self._parts = {name: ContainerSnapshot(own[name]) for name in (*_OWN, *_BESIDE) if name in own}
            self._tensors = {name: one for name, one in own.items() if isinstance(one, torch.Tensor)}
            self._names = {name for part in _OWN for name in own[part]} - own.keys()
            self._has_extra = self._kind.get_extra_state is not torch.nn.Module.get_extra_state
        self._shown = _shown(module)
        self._extra = copy.deepcopy(module.get_extra_state()) if self._has_extra else None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Its own parameters and buffers."""
        parts = (self._module._parameters, self._module._buffers)
        return (one for part in parts for one in part.values() if one is not None)

    def put_back(self) -> None:
        """Restore it. Its extra state must be restored afterwards."""
        module, own = self._module, vars(self._module)
        module.training = self._training
        if self._is_script:
            return
        if type(module) is not self._kind:
            module.__class__ = self._kind
        for name, kept in self._parts.items():
            own[name] = kept.as_it_was()
        shown = _shown(module)
        for name in shown.keys() - self._shown.keys():
            delattr(self._kind, name)
        for name in self._shown.keys() - shown.keys():
            setattr(self._kind, name, self._shown[name])
        for name in self._names & own.keys():  # such an attribute would hide the parameter
            del own[name]
        for name in self._tensors.keys() - own.keys():
            own[name] = self._tensors[name]

    def put_extra_back(self) -> None:
        """Restore the extra state, which `get_extra_state` has returned."""
        if self._has_extra:
            self._module.set_extra_state(self._extra)


class OptimizerSnapshot:
    """One of torch's optimizers: its groups, and its state of each parameter.

    Args:
        optimizer: with its own state and groups.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._state = {key: _copied(kept) for key, kept in optimizer.state.items()}
        self._there: Any = optimizer.state
        self._groups = ContainerSnapshot(optimizer.param_groups)
        self._options = [
            ContainerSnapshot(one) for group in optimizer.param_groups for one in (group, *_containers(group))
        ]
        self._defaults = ContainerSnapshot(getattr(optimizer, "defaults", None))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Tensors in its groups: a learning rate may be one, and schedules write into it."""
        for group in self._groups.one:
            for name, value in group.items():
                if name != "params":
                    yield from _tensors(value)

    def put_back(self) -> None:
        """Restore it."""
        for one in self._options:
            one.as_it_was()
        self._there.clear()
        self._there.update(self._state)
        self._defaults.as_it_was()
        own = vars(self._optimizer)  # a wrapper may only show those of another optimizer
        for name, value in (("param_groups", self._groups.as_it_was()), ("state", self._there)):
            if name in own:
                own[name] = value


class ObjectSnapshot:
    """Any other object that has `state_dict` and `load_state_dict`."""

    def __init__(self, one: Any) -> None:
        self._one, self._state = one, copy.deepcopy(one.state_dict())
        # No state dict has the optimizers whose gradients are unscaled already.
        self._stages = copy.deepcopy(_stages(one))

    def put_back(self) -> None:
        """Restore it."""
        self._one.load_state_dict(self._state)
        if (stages := _stages(self._one)) is not None:
            stages.clear()
            stages.update(copy.deepcopy(self._stages))


def steppers(optimizer: Any) -> list[Any]:
    """This optimizer and those that it holds, if they are torch's and have their own state."""
    every = [optimizer, *(one for one in innermost(optimizer) if one is not optimizer)]
    return [one for one in every if isinstance(one, torch.optim.Optimizer) and "state" in vars(one)]


def lazy_layer(model: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """The first layer, and its name, whose parameters or buffers get their shape with the first forward pass."""
    for name, module in model.named_modules():
        if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values()))):
            return name, module
    return None


def _shown(module: torch.nn.Module) -> dict[str, property]:
    """The properties that a parametrized module shows instead of parameters. Its class is made for it alone."""
    if not is_parametrized(module):
        return {}
    return {name: one for name, one in vars(type(module)).items() if isinstance(one, property)}


def _stages(one: Any) -> Any:
    """The progress of each optimizer's step in a gradient scaler; None for other objects."""
    return one._per_optimizer_states if isinstance(one, torch.amp.GradScaler) else None


def _containers(value: Any) -> Iterator[Any]:
    """The containers in it that may be changed in place, without tensors."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield one
        if isinstance(one, dict | list | tuple):
            yield from _containers(one)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _copied(value: Any) -> Any:
    """A copy of an optimizer's state of a parameter.

    Copies of tensors stay on their device, because the optimizer gets these copies when it is restored.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return copy.deepcopy(value)
