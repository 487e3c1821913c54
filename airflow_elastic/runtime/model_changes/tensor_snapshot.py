"""Snapshots of tensors and parameters, to restore them in place: the same objects, in the same memory.

Copies of tensors on a GPU are in the memory of the machine, because the pass may measure how much a GPU can take.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: Attributes of a tensor with the hooks that a script has added.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class TensorSnapshot:
    """The memory of a tensor, and a copy of its numbers.

    Args:
        tensor: a dense tensor is restored into the memory that it has now, also if it has got other memory since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._there = tensor, tensor.detach()
        self._copy = _aside(_once(_local(self._there)))

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore it."""
        if not _alike(_local(self._tensor), _local(self._there)):
            if isinstance(self._tensor, DTensor):
                _give(self._tensor, self._there)
            else:
                self._tensor.data = self._there
        # A sparse tensor's second object does not see a change, so copy into the tensor itself.
        _once(_local(self._tensor)).copy_(self._copy)


class ParameterSnapshot:
    """A parameter without its numbers: its gradient, its hooks, and whether it is trained."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter, self._trained = parameter, parameter.requires_grad
        self._grad = parameter.grad
        self._kept_grad = None if self._grad is None else TensorSnapshot(self._grad)
        self._hooks = {name: ContainerSnapshot(getattr(parameter, name, None)) for name in _HOOKS}

    def put_back(self) -> None:
        """Restore it. Its numbers must be restored before."""
        parameter = self._parameter
        parameter.grad = None
        parameter.requires_grad_(self._trained)
        if self._kept_grad is not None:
            self._kept_grad.put_back()
            parameter.grad = self._grad
        for name, kept in self._hooks.items():
            if (now := getattr(parameter, name, None)) is not kept.one:
                if now is not None:
                    now.clear()  # torch still calls the hooks in a container that it once got
                setattr(parameter, name, kept.one)
            kept.as_it_was()


class ContainerSnapshot:
    """The contents of a dict, a list or a set, which stays the same object. Other values stay as they are."""

    def __init__(self, one: Any) -> None:
        self.one = one
        self._copy = one.copy() if isinstance(one, dict | list | set) else None

    def as_it_was(self) -> Any:
        """The same object with its former contents."""
        if self._copy is not None:
            self.one.clear()
            (self.one.extend if isinstance(self.one, list) else self.one.update)(self._copy)
        return self.one


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of the tensor, which shares its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they have the same form, and, if that can be known, the same memory."""
    forms = [(each.layout, each.dtype, each.device, each.shape) for each in (one, other)]
    if forms[0] != forms[1] or not _is_plain(one) or not _is_plain(other):
        return forms[0] == forms[1]
    return one.stride() == other.stride() and one.data_ptr() == other.data_ptr()


def _give(tensor: DTensor, there: torch.Tensor) -> None:
    """Give a sharded tensor this memory and type: it has both in its local part."""
    own: Any = there
    tensor._local_tensor, tensor._spec = own._local_tensor, own._spec


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Each element of its memory once: in a tensor from `expand`, many elements share one place."""
    if not _is_plain(tensor):
        return tensor
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _aside(tensor: torch.Tensor) -> torch.Tensor:
    there = tensor.detach()
    return there.clone() if there.device.type in ("cpu", "meta") else there.cpu()
