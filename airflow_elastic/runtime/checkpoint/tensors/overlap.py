"""Tensors with several elements at the same address, as `expand` makes them. torch cannot copy into such a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage


def overlaps(value: Any) -> bool:
    """Whether it is a tensor with several elements at one address."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or is_lazy(value):
        return False
    return value.layout is torch.strided and any(
        step == 0 and size > 1 for step, size in zip(value.stride(), value.shape, strict=True)
    )


@contextmanager
def each_apart(model: torch.nn.Module) -> Iterator[None]:
    """A context for loading a model: inside it, plain copies replace the tensors that overlap.

    After that, what was loaded is written into the memory of the original tensors, so that they are still views of the
    same storage. The copy stays where that would change another loaded tensor, or where its elements differ although
    they would share an address.
    """
    others: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    places: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, one in own.items():
                if one is not None and overlaps(one):
                    places.append((own, name, one))
                    others.setdefault(id(one), (one, _like(one)))
    for there, name, one in places:
        there[name] = others[id(one)][1]
    stays: set[int] = set()
    try:
        yield
        held = SharedStorage(one for each in (model.parameters(), model.buffers()) for one in each)
        stays = {number for number, both in others.items() if not _goes_into(*both, held)}
    finally:
        for there, name, one in places:
            if id(one) not in stays:
                there[name] = one


def _like(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach().clone(memory_format=torch.contiguous_format)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return torch.nn.Parameter(found, requires_grad=tensor.requires_grad) if is_parameter else found


@torch.no_grad()
def _goes_into(tensor: torch.Tensor, loaded: torch.Tensor, held: SharedStorage) -> bool:
    """Write what was loaded into a tensor that overlaps. Returns False where that is impossible."""
    room, own = tensor.detach(), loaded.detach()
    if room.shape != own.shape or room.is_meta:
        return False
    if torch.equal(room, own):
        return True
    for dim, step in enumerate(room.stride()):
        if step == 0 and room.shape[dim] > 1:
            room, own = room.narrow(dim, 0, 1), own.narrow(dim, 0, 1)
    if room in held or not torch.equal(own.expand_as(loaded), loaded):
        return False
    room.copy_(own)
    return True
