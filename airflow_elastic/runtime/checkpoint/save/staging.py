"""Choose a rank's part of a state and its layout in the rank's slot, and copy it there. Training waits only for this.

Tensors are copied as they are. Other values (counters, names, random states) are small, and are serialised here. What
all ranks have alike is divided: the ranks of each worker together hold it once, and one worker writes each part to
storage. The division follows from names and sizes alone, so ranks need not communicate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from airflow_elastic.runtime.checkpoint.format.file_layout import Extent, aligned, lay_out_file
from airflow_elastic.runtime.checkpoint.format.flatten import flattened
from airflow_elastic.runtime.checkpoint.format.values import to_bytes
from airflow_elastic.runtime.checkpoint.save.layout import Layout, Part, Places, Value, is_odd
from airflow_elastic.runtime.checkpoint.tensors.sharding import SHARDED_TENSOR, WRAPPER, is_wrapper, offsets
from airflow_elastic.spec.checkpoints.index import Index
from airflow_elastic.spec.errors import InvalidInput

#: Keys of a script's own objects begin with this. They may differ among ranks; rank 0's are saved.
_FIRST = "other."

#: Tensors with these prefixes, except buffers, mostly change only in an optimizer's step.
_SLOW = ("model.", "optimizer.state.")

#: What is not written to storage begins after so many free bytes. A random state takes some bytes more or less.
_SPARE = 512


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of a rank among all; each worker has `procs` ranks."""

    rank: int
    world_size: int
    procs: int

    @property
    def node(self) -> int:
        """The number of its worker, among those that train."""
        return self.rank // self.procs

    @property
    def local(self) -> int:
        """Its local rank."""
        return self.rank % self.procs


class _Found(NamedTuple):
    """A tensor that this rank copies, before it has a place.

    `leaf`: its number among all values of the state. `tensor`: this rank's part. `kept`: this rank writes it to
    storage. `slow`: only an optimizer's step changes it.
    """

    extent: Extent
    leaf: int
    tensor: torch.Tensor
    kept: bool
    slow: bool


@torch.no_grad()  # else `to_local` would record gradients
def lay_out(
    state: Mapping[str, Any],
    place: RankPosition,
    *,
    own: str,
    first: Collection[str] = (),
    ties: Mapping[str, str] | None = None,
) -> Layout:
    """Decide which values of a state this rank copies, and where to.

    Args:
        state: nested dicts and lists, with tensors and other values as leaves.
        place: this rank's position.
        own: values below this key are this rank's own. All other values that are not sharded should be alike on all
            ranks.
        first: keys of tensors in which ranks may differ. Rank 0's are saved.
        ties: keys of tensors that have several (tied weights), each with the first key. Only the first is copied.

    Raises:
        InvalidInput: it holds tensors of a kind that cannot be saved.
    """
    flat = flattened(state)
    own = f"{own}."
    leaves = [*flat.values()]
    parts: list[_Found] = []
    alike: list[tuple[str, int]] = []
    values: list[Value] = []
    data: list[bytes] = []
    # Ranks may differ in these, and rank 0's are saved. Those of other ranks are used if they turn out to be the same.
    perhaps: list[_Found] = []
    known = ties or {}
    own_ties: dict[str, str] = {}
    reusable = True
    for leaf, (key, value) in enumerate(flat.items()):
        mine = key.startswith(own)
        if key in known:
            if place.rank == 0 or isinstance(value, DTensor):
                own_ties[key] = known[key]
            continue
        if is_wrapper(value):
            raise InvalidInput(WRAPPER.format(key, type(value).__name__))
        if isinstance(value, DTensor):
            leaves[leaf] = summed = _summed(value)
            reusable = reusable and summed is value
            part = _sharded(key, leaf, summed, slow=key.startswith(_SLOW) and key not in first)
            parts += [part] if part else []
        elif type(value).__name__ == "ShardedTensor":
            raise InvalidInput(SHARDED_TENSOR.format(key))
        elif not isinstance(value, torch.Tensor):
            if mine or place.rank == 0:
                data.append(to_bytes(key, value))
                values.append(Value(key, leaf, perhaps=False))
            elif place.local == 0:
                try:
                    data.append(to_bytes(key, value))
                except InvalidInput:  # rank 0's value may have another type
                    reusable = False
                else:
                    values.append(Value(key, leaf, perhaps=True))
        elif mine:
            parts.append(_whole(key, leaf, value, kept=True))
        elif key in first or key.startswith(_FIRST):
            if place.rank == 0:
                parts.append(_whole(key, leaf, value, kept=True))
            elif place.local == 0 and not value.is_meta:
                perhaps.append(_whole(key, leaf, value, kept=False))
        else:
            alike.append((key, leaf))
    parts += _share(alike, leaves, place)
    sizes = [len(text) for value, text in zip(values, data, strict=True) if not value.perhaps]
    places = replace(
        _arrange(parts, sum(sizes), perhaps, stays=not any(value.perhaps for value in values)),
        values=tuple(values),
        alike=tuple(alike),
        ties=None if ties is None else own_ties,
        reusable=reusable,
    )
    layout = places.of(leaves, data)
    assert layout is not None  # noqa: S101 - the room was made for these values
    return layout


def _whole(key: str, leaf: int, tensor: torch.Tensor, *, kept: bool, slow: bool = False) -> _Found:
    shape = tuple(tensor.shape)
    extent = Extent(key, tensor.dtype, shape, (0,) * len(shape), shape)
    return _Found(extent, leaf, tensor, kept, slow and _beside(tensor))


def _beside(tensor: torch.Tensor) -> bool:
    """Whether it is on a device that can copy in the background."""
    return tensor.is_cpu or tensor.is_cuda


def _summed(tensor: DTensor) -> DTensor:
    """A tensor with Partial placements (a norm, for example), reduced. All ranks call this together."""
    if not any(how.is_partial() for how in tensor.placements):
        return tensor
    summed = [Replicate() if how.is_partial() else how for how in tensor.placements]
    whole: DTensor = tensor.redistribute(tensor.device_mesh, summed)
    return whole


def _sharded(key: str, leaf: int, tensor: DTensor, *, slow: bool) -> _Found | None:
    """This rank's part of the tensor, if it has one."""
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    local = tensor.to_local()
    if not local.numel() and (tensor.numel() or any(coordinate)):
        return None  # the first rank still records a tensor without elements
    offsets, ranks, kept = _standing(tensor.shape, mesh, placements)
    extent = Extent(key, local.dtype, tuple(tensor.shape), offsets, tuple(local.shape), ranks)
    return _Found(extent, leaf, local, kept, slow and _beside(local))


@cache  # training waits for this, and to compute it each time takes longer
def _standing(
    shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[tuple[int, ...], int, bool]:
    """This rank's part of such a tensor: its offsets, the number of ranks that share the rows, and whether this rank
    writes it. If a mesh has replicas of a part, only the first one is written.
    """
    ranks = prod(mesh.size(at) for at, how in enumerate(placements) if _cuts_rows(how))
    at = mesh.get_coordinate() or ()
    kept = all(here == 0 for here, how in zip(at, placements, strict=True) if how.is_replicate())
    return offsets(shape, mesh, placements), ranks, kept


def _cuts_rows(how: Placement) -> bool:
    return isinstance(how, Shard | _StridedShard) and how.dim == 0


def _share(alike: list[tuple[str, int]], leaves: list[Any], place: RankPosition) -> list[_Found]:
    """This rank's share of the tensors that all ranks have alike."""
    sizes = tuple([(-leaves[leaf].numel() * leaves[leaf].itemsize, key) for key, leaf in alike])
    mine = [(*alike[number], kept) for number, kept in _shares(sizes, place)]
    return [
        _whole(key, leaf, leaves[leaf], kept=kept, slow=key.startswith(_SLOW)) for key, leaf, kept in mine
    ]


@lru_cache(maxsize=2)  # mostly the same from save to save, and training waits for it
def _shares(sizes: tuple[tuple[int, str], ...], place: RankPosition) -> list[tuple[int, bool]]:
    """The numbers of this rank's tensors, and whether it writes each. The largest come first, each to the rank that has
    the least bytes so far.
    """
    nodes, locals_ = [0] * (place.world_size // place.procs), [0] * place.procs
    mine = []
    for number, (size, _) in sorted(enumerate(sizes), key=lambda one: one[1]):
        node, local = nodes.index(min(nodes)), locals_.index(min(locals_))
        nodes[node] -= size
        locals_[local] -= size
        if local == place.local:
            mine.append((number, node == place.node))
    return mine


def _arrange(found: list[_Found], value_bytes: int, perhaps: list[_Found], *, stays: bool) -> Places:
    """Place tensors, and leave room for values.

    What is not written to storage keeps its place if values get a bit longer.

    Args:
        found: tensors that this rank has.
        value_bytes: of the values for storage.
        perhaps: tensors that are used perhaps, see `Layout`.
        stays: whether no further values are used perhaps.
    """
    kept, rest = [one for one in found if one.kept], [one for one in found if not one.kept]
    stored = _stretch(kept, 0)
    is_last = stays and not rest and not perhaps
    begin = stored.end if is_last else aligned(stored.end + value_bytes + _SPARE)
    beside = _stretch(rest, begin)
    behind = _stretch(perhaps, aligned(beside.end))
    return Places(
        parts=(*stored.parts, *beside.parts, *behind.parts),
        values=(),
        alike=(),
        stored=stored.index,
        stored_end=stored.end,
        rest_begin=None if is_last else begin,
        rest=beside.index,
        behind=behind.index,
        behind_end=behind.end,
    )


@dataclass(frozen=True, slots=True)
class _ByteRange:
    """Tensors that are side by side in a slot, and the byte after them."""

    parts: list[Part]
    index: Index
    end: int


def _stretch(found: list[_Found], begin: int) -> _ByteRange:
    """Place tensors from byte `begin` on."""
    if not found:
        return _ByteRange([], Index((), ()), begin)
    arranged = lay_out_file(tuple([one.extent for one in found]), begin)
    parts = [
        Part(one.extent, spot, one.leaf, one.slow, one.tensor.device, is_odd(one.tensor))
        for spot, one in zip(arranged.places, found, strict=True)
    ]
    return _ByteRange(parts, Index(arranged.pieces, ()), arranged.end)
