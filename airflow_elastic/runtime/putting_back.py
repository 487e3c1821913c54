"""Models, optimizers and other objects as they are now, to be put back after something that is not to count.

In place: whoever holds a parameter, a buffer or a group of an optimizer still holds the same one afterwards. Copies of
what lies on a GPU are kept in the machine's memory: a measurement may be of how much the GPU takes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.composites import innermost, is_optimizer
from airflow_elastic.spec.errors import InvalidInput


class PutBack:
    """What is to be put back.

    Args:
        objects: modules, optimizers, and whatever else has `state_dict` and `load_state_dict`.

    Raises:
        InvalidInput: an object has no state.
    """

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each once, with a copy
        self._modules: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        self._parameters: list[tuple[torch.Tensor, bool, torch.Tensor | None]] = []
        self._optimizers: list[tuple[Any, list[dict[str, Any]], dict[Any, Any]]] = []
        self._others: list[tuple[Any, Any]] = []
        self._known: dict[int, Any] = {}  # kept, so that no other object gets its number
        self.keep(*objects)

    def keep(self, *objects: Any) -> None:
        """These, too, as they are now; what is kept already stays as it was kept."""
        for one in objects:
            if id(one) in self._known:
                continue
            self._known[id(one)] = one
            if isinstance(one, torch.nn.Module):
                self._keep_module(one)
            elif is_optimizer(one) and (within := [each for each in _steppers(one) if _has_state(each)]):
                for each in within:
                    self._known[id(each)] = each
                    groups = [{**group, "params": list(group["params"])} for group in each.param_groups]
                    state = {key: _copied(kept) for key, kept in each.state.items()}
                    self._optimizers.append((each, groups, state))
            elif hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                self._others.append((one, copy.deepcopy(one.state_dict())))
            else:
                raise InvalidInput(
                    f"run.scratch: given a {type(one).__name__}; allowed: what has state_dict and load_state_dict, as "
                    "models, optimizers and schedules: nothing else can be put back"
                )

    def _keep_module(self, model: torch.nn.Module) -> None:
        _reshard(model)
        for module in model.modules():
            parts: dict[str, Any] = {
                name: dict(getattr(module, name)) for name in ("_parameters", "_buffers", "_modules")
            }
            parts["training"] = module.training
            parts["extra"] = copy.deepcopy(module.get_extra_state()) if _has_extra(module) else None
            self._modules.append((module, parts))
            for one in (*module._parameters.values(), *module._buffers.values()):
                if one is None or id(one) in self._tensors or torch.nn.parameter.is_lazy(one):
                    continue
                self._tensors[id(one)] = (one, _aside(one))
                if isinstance(one, torch.nn.Parameter):
                    grad = None if one.grad is None else one.grad.detach().clone()
                    self._parameters.append((one, one.requires_grad, grad))

    @torch.no_grad()
    def put_back(self) -> None:
        """All of it, as it was when it was kept."""
        for one in self._known.values():
            if isinstance(one, torch.nn.Module):
                _reshard(one)
        for module, parts in self._modules:
            for name in ("_parameters", "_buffers", "_modules"):
                there = getattr(module, name)
                there.clear()
                there.update(parts[name])
            module.training = parts["training"]
            if _has_extra(module):
                module.set_extra_state(parts["extra"])
        for tensor, kept in self._tensors.values():
            if _local(tensor).shape == kept.shape:
                _local(tensor).copy_(kept)
            else:
                tensor.data = kept.to(tensor.device)
        for parameter, trained, grad in self._parameters:
            parameter.requires_grad_(trained)
            parameter.grad = grad
        for optimizer, groups, state in self._optimizers:
            del optimizer.param_groups[len(groups) :]
            for group, kept_group in zip(optimizer.param_groups, groups, strict=True):
                group.clear()
                group.update(kept_group)
            optimizer.state.clear()
            optimizer.state.update(state)
        for other, kept_state in self._others:
            other.load_state_dict(kept_state)


def _steppers(optimizer: Any) -> list[Any]:
    """It, and those that it holds."""
    return [optimizer, *(one for one in innermost(optimizer) if one is not optimizer)]


def _has_state(optimizer: Any) -> bool:
    """Of its own, as torch's optimizers have it."""
    return isinstance(optimizer, torch.optim.Optimizer) and "state" in vars(optimizer)


def _reshard(model: torch.nn.Module) -> None:
    """With FSDP2 modules hold either their shards or whole parameters: these, and nothing else, are what is kept."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _has_extra(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of it, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _aside(tensor: torch.Tensor) -> torch.Tensor:
    local = _local(tensor)
    return local.clone() if local.device.type == "cpu" else local.cpu()


def _copied(value: Any) -> Any:
    """What an optimizer keeps of a parameter, down to its tensors. (These stay where they are: they are put back as
    they are.)
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(one) for one in value)
    return copy.deepcopy(value)
