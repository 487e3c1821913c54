"""Tensors and parameters as they are now, to be put back in place: the same objects, in the same memory.

Copies of what is on a GPU are kept in the memory of the machine: the pass may measure how much a GPU takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: What a script may hang on a tensor itself.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class TensorSnapshot:
    """A tensor as it is now: where it lies, and a copy of what is in it.

    Args:
        tensor: dense ones are put back into the memory that they have now, whatever they were given since.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._there = tensor, tensor.detach()
        self._copy = _aside(_once(_local(self._there)))

    @torch.no_grad()
    def put_back(self) -> None:
        """As it was."""
        if not _alike(_local(self._tensor), _local(self._there)):
            if isinstance(self._tensor, DTensor):
                _give(self._tensor, self._there)
            else:
                self._tensor.data = self._there
        # Of what is sparse the other one does not see a change.
        _once(_local(self._tensor)).copy_(self._copy)


class ParameterSnapshot:
    """What a parameter has besides its numbers: its gradient, its hooks, and whether it is trained."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter, self._trained = parameter, parameter.requires_grad
        self._grad = parameter.grad
        self._kept_grad = None if self._grad is None else TensorSnapshot(self._grad)
        self._hooks = {name: ContainerSnapshot(getattr(parameter, name, None)) for name in _HOOKS}

    def put_back(self) -> None:
        """As it was; its numbers are to be put back before."""
        parameter = self._parameter
        parameter.grad = None
        parameter.requires_grad_(self._trained)
        if self._kept_grad is not None:
            self._kept_grad.put_back()
            parameter.grad = self._grad
        for name, kept in self._hooks.items():
            if (now := getattr(parameter, name, None)) is not kept.one:
                if now is not None:
                    now.clear()  # torch goes on calling what is in one that it was given once
                setattr(parameter, name, kept.one)
            kept.as_it_was()


class ContainerSnapshot:
    """A dict, a list or a set that stays the same one, with what is in it now; anything else as it is."""

    def __init__(self, one: Any) -> None:
        self.one = one
        self._copy = one.copy() if isinstance(one, dict | list | set) else None

    def as_it_was(self) -> Any:
        """The same one, with what was in it."""
        if self._copy is not None:
            self.one.clear()
            (self.one.extend if isinstance(self.one, list) else self.one.update)(self._copy)
        return self.one


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's own part of it, which shares its memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they are of the same form, and lie at the same place where that can be told."""
    forms = [(each.layout, each.dtype, each.device, each.shape) for each in (one, other)]
    if forms[0] != forms[1] or not _is_plain(one) or not _is_plain(other):
        return forms[0] == forms[1]
    return one.stride() == other.stride() and one.data_ptr() == other.data_ptr()


def _give(tensor: DTensor, there: torch.Tensor) -> None:
    """A sharded tensor has its type and its memory in a part of its own."""
    own: Any = there
    tensor._local_tensor, tensor._spec = own._local_tensor, own._spec


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Each element of its memory once: what `expand` has made has many that lie at one place."""
    if not _is_plain(tensor):
        return tensor
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in tensor.stride())]


def _aside(tensor: torch.Tensor) -> torch.Tensor:
    there = tensor.detach()
    return there.clone() if there.device.type in ("cpu", "meta") else there.cpu()
