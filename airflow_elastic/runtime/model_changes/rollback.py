"""Restores models, optimizers and other objects after a pass that must leave no trace.

It restores them in place: parameters, buffers and groups of optimizers stay the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from airflow_elastic.runtime.checkpoint.optimizers.composite import is_optimizer
from airflow_elastic.runtime.model_changes.module_snapshot import (
    ModuleSnapshot,
    ObjectSnapshot,
    OptimizerSnapshot,
    lazy_layer,
    steppers,
)
from airflow_elastic.runtime.model_changes.tensor_snapshot import ParameterSnapshot, TensorSnapshot
from airflow_elastic.spec.errors import InvalidInput


class Rollback:
    """Snapshots of objects, to restore them later.

    Args:
        objects: modules, optimizers, and other objects that have `state_dict` and `load_state_dict`.

    Raises:
        InvalidInput: an object has no state, or a layer has no shape yet.
    """

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        # By the ids of the objects, in the order in which they were kept.
        self._modules: dict[int, ModuleSnapshot] = {}
        self._tensors: dict[int, TensorSnapshot] = {}
        self._parameters: dict[int, ParameterSnapshot] = {}
        self._optimizers: dict[int, OptimizerSnapshot] = {}
        self._others: dict[int, ObjectSnapshot] = {}
        self._known: dict[int, Any] = {}  # held, so that no other object gets the same id
        self.keep(*objects)

    def keep(self, *objects: Any) -> None:
        """Take snapshots of these objects, too. An object that has one already keeps it, also as a part of another.

        Raises:
            InvalidInput: an object has no state, or a layer has no shape yet.
        """
        for one in objects:
            _check(one)
        for one in objects:
            if isinstance(one, torch.nn.Module):
                _reshard(one)
                for module in one.modules():
                    if self._is_new(module):
                        self._modules[id(module)] = kept = ModuleSnapshot(module)
                        self._keep_tensors(kept.tensors())
            elif is_optimizer(one) and (within := steppers(one)):
                for each in within:
                    if self._is_new(each):
                        self._optimizers[id(each)] = kept_one = OptimizerSnapshot(each)
                        self._keep_tensors(kept_one.tensors())
            elif self._is_new(one):
                self._others[id(one)] = ObjectSnapshot(one)

    def _is_new(self, one: Any) -> bool:
        if id(one) in self._known:
            return False
        self._known[id(one)] = one
        return True

    def _keep_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        for one in tensors:
            if self._is_new(one):
                self._tensors[id(one)] = TensorSnapshot(one)
                if isinstance(one, torch.nn.Parameter):
                    self._parameters[id(one)] = ParameterSnapshot(one)

    def put_back(self) -> None:
        """Restore all objects from their snapshots. If this fails for a part, all others are still restored.

        Raises:
            RuntimeError: names the parts that failed, with the reasons.
        """
        failed: list[tuple[str, Exception]] = []
        for number, put_back in self._parts():
            try:
                put_back()
            except Exception as error:
                failed.append((_kind(self._known[number]), error))
        if failed:
            parts = "; ".join(f"{kind}: {type(error).__name__}: {error}" for kind, error in failed)
            raise RuntimeError(
                f"run.scratch: what was before it could not be put back ({parts}). Training on from here would not be "
                "the same: end the rank, and a restart goes on from the newest checkpoint"
            ) from failed[0][1]

    def _parts(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """The functions that restore the parts, in their order."""
        for number, one in self._known.items():
            if isinstance(one, torch.nn.Module):
                yield number, lambda one=one: _reshard(one)  # type: ignore[misc]
        # An object may hold others that have snapshots, too. These come after it: the first one kept is the last.
        for number, module in self._modules.items():
            yield number, module.put_back
        for number, other in reversed(self._others.items()):
            yield number, other.put_back
        for number, module in self._modules.items():
            yield number, module.put_extra_back
        for kept in (self._tensors, self._parameters, self._optimizers):
            for number, each in kept.items():
                yield number, each.put_back


def _check(one: Any) -> None:
    if not isinstance(one, torch.nn.Module):
        if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
            return
        raise InvalidInput(
            f"run.scratch: given a {_kind(one)}; allowed: an object with state_dict and load_state_dict. That is a "
            "model, an optimizer or a schedule, for example. Other objects cannot be put back"
        )
    if (lazy := lazy_layer(one)) is not None:
        name, layer = lazy
        raise InvalidInput(
            f"run.scratch: given a model in which {name or 'the layer itself'} ({_kind(layer)}) has no shape yet; "
            "allowed: layers with a shape. One that the pass makes cannot be undone. Call the model with a batch "
            "before `with run.scratch`"
        )


def _kind(one: Any) -> str:
    return type(one).__name__


def _reshard(model: torch.nn.Module) -> None:
    """With FSDP2 a module has either its shards or whole parameters. Snapshots are only of the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
