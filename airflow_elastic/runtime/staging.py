"""What of a state a rank keeps, and copying that into its slot: the one thing for which training stands still.

Tensors are copied as they are; only what is no tensor (counters, names, random states) is serialised here, and that
is small. What every rank has alike is shared out: each worker holds all of it once, among its ranks, and one of the
workers writes it to storage. Who does what follows from the names and sizes alone, so nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.masked import MaskedTensor

from airflow_elastic.runtime.bands import cuts
from airflow_elastic.runtime.values import to_bytes
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.index import Blob, Index, Piece

_ALIGN = 64

#: What lies below this, a script's own objects, may differ among ranks: the first one's counts.
_FIRST = "other."

#: What lies below these, but for buffers, changes in an optimizer's step and nowhere else, as a rule.
_SLOW = ("model.", "optimizer.state.")

SHARDED_TENSOR = "{} is a ShardedTensor, of the first FSDP: shard the model with fully_shard"

WRAPPER = (
    "{} is a {}, which is made of other tensors (a quantised one, for example): what it stands for would be saved in "
    "its place, and could not be put back. Keep it in a dtype of torch's own"
)

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: Devices from which something can be copied while they do something else.
_BESIDE = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands: `procs` ranks on each worker."""

    rank: int
    world_size: int
    procs: int

    @property
    def node(self) -> int:
        """Number of its worker, among those that train."""
        return self.rank // self.procs

    @property
    def local(self) -> int:
        """Its number on its worker."""
        return self.rank % self.procs


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor to copy: what it is, whether it is this rank's to write to storage, whether only steps change it, and
    whose count of changes tells of that: of a sharded one, the whole's. A band follows others without a gap.
    """

    key: str
    tensor: torch.Tensor
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    kept: bool
    slow: bool = False
    source: torch.Tensor | None = None
    is_band: bool = False

    @property
    def share(self) -> float:
        """How much of the whole tensor comes before it."""
        return self.offsets[0] / self.shape[0] if self.offsets and self.shape[0] else 0.0

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes in a slot: first what is written to storage, then what stays in memory.

    Attributes:
        parts: tensors, with the byte at which each begins.
        blobs: serialised values, likewise.
        kept: what is written to storage.
        rest: what stays in memory only.
        kept_bytes: how much is written to storage.
        total_bytes: all of it.
        alike: what all ranks are taken to have alike, by name, whoever keeps it.
    """

    parts: tuple[tuple[int, _Part], ...]
    blobs: tuple[tuple[int, bytes], ...]
    kept: Index
    rest: Index
    kept_bytes: int
    total_bytes: int
    alike: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def slow_parts(self) -> list[tuple[int, _Part]]:
        """What changes in no other place than an optimizer's step."""
        return [(at, part) for at, part in self.parts if part.slow]

    @property
    def on_gpu(self) -> bool:
        """Whether any of it comes from a GPU."""
        return any(part.tensor.is_cuda for _, part in self.parts)

    def copy_into(self, memory: memoryview) -> None:
        """Copy everything; `memory` has room for `total_bytes`."""
        self.copy_quick(memory)
        _copy(self.slow_parts, memory, wait=True)

    def copy_quick(self, memory: memoryview) -> None:
        """Copy all but the slow parts."""
        for at, data in self.blobs:
            memory[at : at + len(data)] = data
        _copy([(at, part) for at, part in self.parts if not part.slow], memory, wait=True)

    def copy_slow(self, memory: memoryview, device: torch.device) -> None:
        """Copy those slow parts that are on one device; on a GPU this has them copied, and waits for nothing."""
        _copy(
            [(at, part) for at, part in self.slow_parts if part.tensor.device == device], memory, wait=False
        )


def _copy(parts: Iterable[tuple[int, _Part]], memory: memoryview, *, wait: bool) -> None:
    for at, part in parts:
        tensor = part.tensor
        if count := tensor.numel():
            room = torch.frombuffer(memory, dtype=tensor.dtype, count=count, offset=at)
            room.view_as(tensor).copy_(tensor, non_blocking=not wait)


def lay_out(state: Mapping[str, Any], place: Place, *, own: str, first: Collection[str] = ()) -> Layout:
    """Decide what this rank copies of a state, and where to.

    Args:
        state: nested dicts and lists, with tensors and other values as leaves.
        place: where this rank stands.
        own: what lies below this key is this rank's own; everything else that is not sharded, all ranks have alike.
        first: keys of tensors in which ranks may differ, and the first one's count.

    Raises:
        InvalidInput: it holds tensors of a kind that cannot be kept.
    """
    flat, _ = flatten_state_dict(dict(state))
    own = f"{own}."
    parts: list[_Part] = []
    alike: list[tuple[str, torch.Tensor]] = []
    values: list[tuple[str, bytes]] = []
    for key, value in flat.items():
        mine = key.startswith(own)
        if is_wrapper(value):
            raise InvalidInput(WRAPPER.format(key, type(value).__name__))
        if isinstance(value, DTensor):
            parts += _sharded(key, _summed(value), slow=key.startswith(_SLOW) and key not in first)
        elif type(value).__name__ == "ShardedTensor":
            raise InvalidInput(SHARDED_TENSOR.format(key))
        elif not isinstance(value, torch.Tensor):
            if mine or place.rank == 0:
                values.append((key, to_bytes(key, value)))
        elif mine:
            parts.append(_whole(key, value, kept=True))
        elif key in first or key.startswith(_FIRST):
            if place.rank == 0:
                parts.append(_whole(key, value, kept=True))
        else:
            alike.append((key, value))
    parts += _share(alike, place)
    return replace(_arrange(parts, values), alike=dict(alike))


def is_wrapper(value: Any) -> bool:
    """Whether it is a tensor that stands for others, or a part of one is; or quantised by torch itself."""
    if type(value) in _PLAIN:  # of thousands there is no more to ask
        return bool(value.is_quantized)
    own = value._local_tensor if isinstance(value, DTensor) else value
    if not isinstance(own, torch.Tensor) or isinstance(own, AsyncCollectiveTensor):
        return False
    return hasattr(own, "__tensor_flatten__") or isinstance(own, MaskedTensor)


def _whole(key: str, tensor: torch.Tensor, *, kept: bool, slow: bool = False) -> _Part:
    slow = slow and tensor.device.type in _BESIDE
    return _Part(key, tensor.detach(), tuple(tensor.shape), (0,) * tensor.dim(), kept, slow, tensor)


def _summed(tensor: DTensor) -> DTensor:
    """One of which each rank has an addend only (a norm, for example) as the sum. All ranks call this together."""
    if not any(how.is_partial() for how in tensor.placements):
        return tensor
    summed = [Replicate() if how.is_partial() else how for how in tensor.placements]
    whole: DTensor = tensor.redistribute(tensor.device_mesh, summed)
    return whole


def _sharded(key: str, tensor: DTensor, *, slow: bool) -> list[_Part]:
    """This rank's part. Where a mesh has copies of a part, those at its first place write it."""
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    offsets = offsets_of(tensor)
    kept = all(at == 0 for at, how in zip(coordinate, placements, strict=True) if how.is_replicate())
    local = tensor.to_local().detach()
    slow = slow and local.device.type in _BESIDE
    if not local.numel() and (tensor.numel() or any(coordinate)):
        return []  # of one that has no elements at all, somebody says that it is there
    part = _Part(key, local, tuple(tensor.shape), offsets, kept, slow, tensor)
    ranks = prod(mesh.size(at) for at, how in enumerate(placements) if _cuts_rows(how))
    edges = cuts(part.shape[0], offsets[0], local.shape[0], ranks, part.size) if ranks > 1 else ()
    return _bands(part, edges) if edges else [part]


def _cuts_rows(how: Placement) -> bool:
    return isinstance(how, Shard | _StridedShard) and how.dim == 0


def _bands(part: _Part, edges: tuple[int, ...]) -> list[_Part]:
    """A part, cut at these of its rows."""
    (begin, *others), rows = part.offsets, part.tensor.shape[0]
    same = part.kept, part.slow, part.source
    return [
        _Part(part.key, part.tensor[low:high], part.shape, (begin + low, *others), *same, is_band=True)
        for low, high in pairwise((0, *edges, rows))
    ]


def offsets_of(tensor: DTensor) -> tuple[int, ...]:
    """Where in the whole this rank's part begins, in each dimension."""
    return _offsets(tensor.shape, tensor.device_mesh, tensor.placements)


@cache  # optimizers have several tensors for each of the model's, and torch takes as long as a small copy
def _offsets(shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> tuple[int, ...]:
    """As the parts are cut. torch's own answer is another one where FSDP has cut what tensor parallelism has not cut
    evenly.
    """
    at, sizes = [0] * len(shape), list(shape)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None  # noqa: S101 - who is not in the mesh has no part
    split = [
        (isinstance(how, _StridedShard), how.dim, mesh.size(dim), coordinate[dim])
        for dim, how in enumerate(placements)
        if isinstance(how, Shard | _StridedShard)
    ]
    # A strided one is of what others have cut.
    for _, dim, count, mine in sorted(split, key=lambda cut: cut[0]):
        each = -(-sizes[dim] // count)
        begin = min(mine * each, sizes[dim])
        at[dim], sizes[dim] = at[dim] + begin, min(each, sizes[dim] - begin)
    return tuple(at)


def _share(alike: list[tuple[str, torch.Tensor]], place: Place) -> list[_Part]:
    """This rank's share of what all have alike: the largest first, each to whoever has least."""
    nodes, locals_ = [0] * (place.world_size // place.procs), [0] * place.procs
    mine = []
    sized = [(-tensor.numel() * tensor.element_size(), key, tensor) for key, tensor in alike]
    for size, key, tensor in sorted(sized, key=lambda one: one[:2]):
        node, local = nodes.index(min(nodes)), locals_.index(min(locals_))
        nodes[node] -= size
        locals_[local] -= size
        if local == place.local:
            mine.append(_whole(key, tensor, kept=node == place.node, slow=key.startswith(_SLOW)))
    return mine


def _arrange(parts: list[_Part], values: list[tuple[str, bytes]]) -> Layout:
    placed: list[tuple[int, _Part]] = []
    kept, at = _lay(0, [part for part in parts if part.kept], placed)
    blobs, written = [], []
    for key, data in values:
        blobs.append(Blob(key, at, len(data)))
        written.append((at, data))
        at += len(data)
    kept_bytes = at
    rest, at = _lay(_aligned(at), [part for part in parts if not part.kept], placed)
    index = Index(tuple(kept), tuple(blobs))
    return Layout(tuple(placed), tuple(written), index, Index(tuple(rest), ()), kept_bytes, at)


def _lay(at: int, parts: list[_Part], placed: list[tuple[int, _Part]]) -> tuple[list[Piece], int]:
    """Place parts from byte `at` on; returns what lies where, and where the next thing may lie."""
    pieces = []
    for part in sorted(parts, key=lambda part: part.share):
        tensor, size = part.tensor, part.size
        # Between bands nobody has to read what is nothing.
        at = _aligned(at, tensor.element_size() if part.is_band else _ALIGN)
        dtype, lengths = _name(tensor.dtype), tuple(tensor.shape)
        pieces.append(Piece(part.key, dtype, part.shape, part.offsets, lengths, at, size))
        placed.append((at, part))
        at += size
    return pieces, at


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _aligned(at: int, to: int = _ALIGN) -> int:
    return -(-at // to) * to
