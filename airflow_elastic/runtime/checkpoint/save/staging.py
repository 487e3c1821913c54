"""What of a state a rank keeps, and copying that into its slot: the one thing for which training stands still.

Tensors are copied as they are; only what is no tensor (counters, names, random states) is serialised here, and that
is small. What every rank has alike is shared out: each worker holds all of it once, among its ranks, and one of the
workers writes it to storage. Who does what follows from the names and sizes alone, so nobody has to ask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from airflow_elastic.runtime.checkpoint.format.file_layout import Extent, Location, aligned, lay_out_file
from airflow_elastic.runtime.checkpoint.format.flatten import flattened
from airflow_elastic.runtime.checkpoint.format.values import to_bytes
from airflow_elastic.runtime.checkpoint.tensors.sharding import SHARDED_TENSOR, WRAPPER, is_wrapper, offsets
from airflow_elastic.spec.checkpoints.index import Blob, Index
from airflow_elastic.spec.errors import InvalidInput

#: What lies below this, a script's own objects, may differ among ranks: the first one's counts.
_FIRST = "other."

#: What lies below these, but for buffers, changes in an optimizer's step and nowhere else, as a rule.
_SLOW = ("model.", "optimizer.state.")


@dataclass(frozen=True, slots=True)
class RankPosition:
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


class _Part(NamedTuple):
    """A tensor to copy: whether it is this rank's to write to storage, whether only steps change it, and whose count of
    changes tells of that: of a sharded one, the whole's.
    """

    extent: Extent
    tensor: torch.Tensor
    kept: bool
    slow: bool
    source: torch.Tensor

    @property
    def key(self) -> str:
        return self.extent.key


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes in a slot: first what is written to storage, then what stays in memory.

    Attributes:
        parts: tensors, with the bytes at which each begins.
        blobs: serialised values, likewise.
        kept: what is written to storage.
        rest: what stays in memory only.
        perhaps: the same, of what the first rank's counts: this one's is of use where it is found to be alike.
        kept_bytes: how much is written to storage.
        total_bytes: all of it.
        alike: what all ranks are taken to have alike, by name, whoever keeps it.
    """

    parts: tuple[tuple[Location, _Part], ...]
    blobs: tuple[tuple[int, bytes], ...]
    kept: Index
    rest: Index
    perhaps: Index
    kept_bytes: int
    total_bytes: int
    alike: Mapping[str, torch.Tensor] = field(default_factory=dict)

    @property
    def slow_parts(self) -> list[tuple[Location, _Part]]:
        """What changes in no other place than an optimizer's step."""
        return [(spot, part) for spot, part in self.parts if part.slow]

    @property
    def on_gpu(self) -> bool:
        """Whether any of it comes from a GPU."""
        return any(part.tensor.is_cuda for _, part in self.parts)

    def copy_into(self, memory: memoryview) -> None:
        """Copy everything; `memory` has room for `total_bytes`."""
        self._copy_at_once(self.parts, memory)

    def copy_quick(self, memory: memoryview) -> None:
        """Copy all but the slow parts."""
        self._copy_at_once([(spot, part) for spot, part in self.parts if not part.slow], memory)

    def copy_slow(self, memory: memoryview, device: torch.device) -> None:
        """Copy those slow parts that are on one device; on a GPU this has them copied, and waits for nothing."""
        _copy([(spot, part) for spot, part in self.slow_parts if part.tensor.device == device], memory)

    def _copy_at_once(self, parts: Collection[tuple[Location, _Part]], memory: memoryview) -> None:
        for at, data in self.blobs:
            memory[at : at + len(data)] = data
        try:
            _copy(parts, memory)
        finally:  # whatever fails: nothing may be copied to where somebody else is going to copy to
            for device in {part.tensor.device for _, part in parts if part.tensor.is_cuda}:
                torch.cuda.current_stream(device).synchronize()


def _copy(parts: Iterable[tuple[Location, _Part]], memory: memoryview) -> None:
    """Of what is on a GPU this has it copied, and waits for nothing: to wait for each takes longer than a small one."""
    for spot, part in parts:
        bands = part.tensor.split_with_sizes(spot.rows) if spot.rows else (part.tensor,)
        for at, band in zip(spot.begins, bands, strict=True):
            if count := band.numel():
                room = torch.frombuffer(memory, dtype=band.dtype, count=count, offset=at)
                room.view_as(band).copy_(band, non_blocking=band.is_cuda)


@torch.no_grad()  # or the parts of sharded tensors would be asked for so that gradients flow
def lay_out(
    state: Mapping[str, Any],
    place: RankPosition,
    *,
    own: str,
    first: Collection[str] = (),
    ties: Mapping[str, str] | None = None,
) -> Layout:
    """Decide what this rank copies of a state, and where to.

    Args:
        state: nested dicts and lists, with tensors and other values as leaves.
        place: where this rank stands.
        own: what lies below this key is this rank's own; everything else that is not sharded, all ranks have alike.
        first: keys of tensors in which ranks may differ, and the first one's count.
        ties: keys of tensors that are there by another key, too, with that one: these alone are copied.

    Raises:
        InvalidInput: it holds tensors of a kind that cannot be kept.
    """
    flat = flattened(state)
    own = f"{own}."
    parts: list[_Part] = []
    alike: list[tuple[str, torch.Tensor]] = []
    values: list[tuple[str, bytes]] = []
    # Ranks may differ in these, and the first one's count: others' are of use where they turn out to be the same.
    perhaps: list[_Part] = []
    perhaps_values: list[tuple[str, bytes]] = []
    known = ties or {}
    told: dict[str, str] = {}
    for key, value in flat.items():
        mine = key.startswith(own)
        if key in known:
            if place.rank == 0 or isinstance(value, DTensor):
                told[key] = known[key]
            continue
        if is_wrapper(value):
            raise InvalidInput(WRAPPER.format(key, type(value).__name__))
        if isinstance(value, DTensor):
            part = _sharded(key, _summed(value), slow=key.startswith(_SLOW) and key not in first)
            parts += [part] if part else []
        elif type(value).__name__ == "ShardedTensor":
            raise InvalidInput(SHARDED_TENSOR.format(key))
        elif not isinstance(value, torch.Tensor):
            if mine or place.rank == 0:
                values.append((key, to_bytes(key, value)))
            elif place.local == 0:
                with contextlib.suppress(InvalidInput):  # what the first rank has need not be of such a type
                    perhaps_values.append((key, to_bytes(key, value)))
        elif mine:
            parts.append(_whole(key, value, kept=True))
        elif key in first or key.startswith(_FIRST):
            if place.rank == 0:
                parts.append(_whole(key, value, kept=True))
            elif place.local == 0 and not value.is_meta:
                perhaps.append(_whole(key, value, kept=False))
        else:
            alike.append((key, value))
    parts += _share(alike, place)
    arranged = _arrange(parts, values, perhaps, perhaps_values)
    kept = arranged.kept if ties is None else replace(arranged.kept, ties=told)
    return replace(arranged, kept=kept, alike=dict(alike))


def _whole(key: str, tensor: torch.Tensor, *, kept: bool, slow: bool = False) -> _Part:
    shape = tuple(tensor.shape)
    extent = Extent(key, tensor.dtype, shape, (0,) * len(shape), shape)
    return _Part(extent, _as_it_is(tensor), kept, slow and _beside(tensor), tensor)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """The same for a thread that copies it later, when a script may have given the tensor other memory.

    What is conjugated or negated only when it is read is so now: torch does that once a GPU has been told to copy, and
    does not wait until it is there.
    """
    own = tensor.detach()
    return own.resolve_conj().resolve_neg() if own.is_conj() or own.is_neg() else own


def _beside(tensor: torch.Tensor) -> bool:
    """Whether it can be copied while its device does something else."""
    return tensor.is_cpu or tensor.is_cuda


def _summed(tensor: DTensor) -> DTensor:
    """One of which each rank has an addend only (a norm, for example) as the sum. All ranks call this together."""
    if not any(how.is_partial() for how in tensor.placements):
        return tensor
    summed = [Replicate() if how.is_partial() else how for how in tensor.placements]
    whole: DTensor = tensor.redistribute(tensor.device_mesh, summed)
    return whole


def _sharded(key: str, tensor: DTensor, *, slow: bool) -> _Part | None:
    """This rank's part, where it has one."""
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    local = _as_it_is(tensor.to_local())
    if not local.numel() and (tensor.numel() or any(coordinate)):
        return None  # of one that has no elements at all, somebody says that it is there
    offsets, ranks, kept = _standing(tensor.shape, mesh, placements)
    extent = Extent(key, local.dtype, tuple(tensor.shape), offsets, tuple(local.shape), ranks)
    return _Part(extent, local, kept, slow and _beside(local), tensor)


@cache  # training waits for it, and to ask for these one by one takes longer
def _standing(
    shape: torch.Size, mesh: DeviceMesh, placements: tuple[Placement, ...]
) -> tuple[tuple[int, ...], int, bool]:
    """Of this rank's part of such a tensor: where it begins, how many ranks have a part of the rows each, and whether
    it is this one's to write. Where a mesh has copies of a part, those at its first place write it.
    """
    ranks = prod(mesh.size(at) for at, how in enumerate(placements) if _cuts_rows(how))
    at = mesh.get_coordinate() or ()
    kept = all(here == 0 for here, how in zip(at, placements, strict=True) if how.is_replicate())
    return offsets(shape, mesh, placements), ranks, kept


def _cuts_rows(how: Placement) -> bool:
    return isinstance(how, Shard | _StridedShard) and how.dim == 0


def _share(alike: list[tuple[str, torch.Tensor]], place: RankPosition) -> list[_Part]:
    """This rank's share of what all have alike."""
    sizes = tuple([(-tensor.numel() * tensor.itemsize, key) for key, tensor in alike])
    mine = [(*alike[number], kept) for number, kept in _shares(sizes, place)]
    return [_whole(key, tensor, kept=kept, slow=key.startswith(_SLOW)) for key, tensor, kept in mine]


@lru_cache(maxsize=2)  # alike from save to save, and training waits for it
def _shares(sizes: tuple[tuple[int, str], ...], place: RankPosition) -> list[tuple[int, bool]]:
    """Numbers of what is this rank's, and whether it is its to write: the largest first, each to whoever has least."""
    nodes, locals_ = [0] * (place.world_size // place.procs), [0] * place.procs
    mine = []
    for number, (size, _) in sorted(enumerate(sizes), key=lambda one: one[1]):
        node, local = nodes.index(min(nodes)), locals_.index(min(locals_))
        nodes[node] -= size
        locals_[local] -= size
        if local == place.local:
            mine.append((number, node == place.node))
    return mine


def _arrange(
    parts: list[_Part],
    values: list[tuple[str, bytes]],
    perhaps: list[_Part],
    perhaps_values: list[tuple[str, bytes]],
) -> Layout:
    kept, rest = [part for part in parts if part.kept], [part for part in parts if not part.kept]
    stored = _stretch(kept, values, 0)
    beside = _stretch(rest, [], aligned(stored.end))
    behind = _stretch(perhaps, perhaps_values, aligned(beside.end))
    return Layout(
        parts=(*stored.parts, *beside.parts, *behind.parts),
        blobs=(*stored.blobs, *behind.blobs),
        kept=stored.index,
        rest=beside.index,
        perhaps=behind.index,
        kept_bytes=stored.end,
        total_bytes=behind.end,
    )


@dataclass(frozen=True, slots=True)
class _ByteRange:
    """What lies side by side in a slot, and the byte behind it."""

    parts: list[tuple[Location, _Part]]
    blobs: list[tuple[int, bytes]]
    index: Index
    end: int


def _stretch(parts: list[_Part], values: list[tuple[str, bytes]], begin: int) -> _ByteRange:
    """From a byte on, tensors and then values."""
    if not parts and not values:
        return _ByteRange([], [], Index((), ()), begin)
    arranged = lay_out_file(tuple([part.extent for part in parts]), begin)
    blobs, written, at = [], [], arranged.end
    for key, data in values:
        blobs.append(Blob(key, at, len(data)))
        written.append((at, data))
        at += len(data)
    placed = list(zip(arranged.places, parts, strict=True))
    return _ByteRange(placed, written, Index(arranged.pieces, tuple(blobs)), at)
