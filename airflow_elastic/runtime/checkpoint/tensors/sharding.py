"""Distinguish plain tensors, tensors that wrap others, and parts of sharded tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.masked import MaskedTensor

SHARDED_TENSOR = "{} is a ShardedTensor, as FSDP1 makes them: shard the model with fully_shard"

WRAPPER = (
    "{} is a {}, which is made of other tensors (a quantised one, for example). The tensor that it stands for would be "
    "saved instead, and could not be restored. Keep it in one of torch's dtypes"
)

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_wrapper(value: Any) -> bool:
    """Whether a tensor, or this rank's part of it, is made of other tensors or is quantised by torch itself."""
    if type(value) in _PLAIN:  # fast, because models have thousands
        return bool(value.is_quantized)
    own = value._local_tensor if isinstance(value, DTensor) else value
    if not isinstance(own, torch.Tensor) or isinstance(own, AsyncCollectiveTensor):
        return False
    return hasattr(own, "__tensor_flatten__") or isinstance(own, MaskedTensor)


def offsets_of(tensor: DTensor) -> tuple[int, ...]:
    """The index in the whole tensor at which this rank's part begins, in each dimension."""
    return offsets(tensor.shape, tensor.device_mesh, tensor.placements)


@cache  # an optimizer has several tensors for each parameter, and torch's own call costs as much as a small copy
def offsets(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> tuple[int, ...]:
    """The offsets of this rank's part, from how the tensor was cut.

    torch's own function returns other ones if FSDP has cut a tensor that tensor parallelism has cut unevenly.
    """
    at, sizes = [0] * len(shape), list(shape)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None  # noqa: S101 - who is not in the mesh has no part
    split = [
        (isinstance(how, _StridedShard), how.dim, mesh.size(dim), coordinate[dim])
        for dim, how in enumerate(placements)
        if isinstance(how, Shard | _StridedShard)
    ]
    # A strided shard divides what the other placements have cut.
    for _, dim, count, mine in sorted(split, key=lambda cut: cut[0]):
        each = -(-sizes[dim] // count)
        begin = min(mine * each, sizes[dim])
        at[dim], sizes[dim] = at[dim] + begin, min(each, sizes[dim] - begin)
    return tuple(at)
