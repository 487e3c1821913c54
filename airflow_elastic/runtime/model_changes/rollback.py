"""Models, optimizers and other objects as they are now, to be put back after something that is not to count.

In place: parameters, buffers and groups of optimizers stay the same objects.
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
    """What is to be put back.

    Args:
        objects: modules, optimizers, and whatever else has `state_dict` and `load_state_dict`.

    Raises:
        InvalidInput: an object has no state, or a layer has no shape yet.
    """

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        # By numbers of the objects, in the order in which these were kept.
        self._modules: dict[int, ModuleSnapshot] = {}
        self._tensors: dict[int, TensorSnapshot] = {}
        self._parameters: dict[int, ParameterSnapshot] = {}
        self._optimizers: dict[int, OptimizerSnapshot] = {}
        self._others: dict[int, ObjectSnapshot] = {}
        self._known: dict[int, Any] = {}  # held, so that no other object gets its number
        self.keep(*objects)

    def keep(self, *objects: Any) -> None:
        """These, too, as they are now; what is kept already stays as it was kept, also as a part of something else.

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
        """All of it, as it was when it was kept; where a part cannot be put back, all others are.

        Raises:
            RuntimeError: which could not, and why.
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
        """How each of them is put back, in the order in which that is to be done."""
        for number, one in self._known.items():
            if isinstance(one, torch.nn.Module):
                yield number, lambda one=one: _reshard(one)  # type: ignore[misc]
        # What others hold may be kept here, too: it is put back after them, and what was kept first comes last.
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
            f"run.scratch: given a {_kind(one)}; allowed: what has state_dict and load_state_dict, as models, "
            "optimizers and schedules: nothing else can be put back"
        )
    if (lazy := lazy_layer(one)) is not None:
        name, layer = lazy
        raise InvalidInput(
            f"run.scratch: given a model in which {name or 'the layer itself'} ({_kind(layer)}) has no shape yet; "
            "allowed: layers that have theirs, as one that the pass gives it cannot be taken back. Call the model with "
            "a batch before `with run.scratch`"
        )


def _kind(one: Any) -> str:
    return type(one).__name__


def _reshard(model: torch.nn.Module) -> None:
    """With FSDP2 modules hold either their shards or whole parameters: these, and nothing else, are what is kept."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
