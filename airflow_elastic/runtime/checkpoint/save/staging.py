"""Choose a rank's part of a state and its layout in the rank's slot, and copy it there. Training waits only for this.

Tensors are copied as they are. Other values (counters, names, random states) are small, and are serialised here. What
all ranks have alike is divided: the ranks of each worker together hold it once, and one worker writes each part to
storage. The division follows from names and sizes alone, so ranks need not communicate.
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

#: Keys of a script's own objects begin with this. They may differ among ranks; rank 0's are saved.
_FIRST = "other."

#: Tensors with these prefixes, except buffers, mostly change only in an optimizer's step.
_SLOW = ("model.", "optimizer.state.")


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


class _Part(NamedTuple):
    """A tensor to copy.

    `kept`: this rank writes it to storage. `slow`: only an optimizer's step changes it. `source`: the tensor whose
    version counter shows changes; for a part of a sharded tensor, the DTensor.
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
    """The places of all values in a slot: first those for storage, then those for memory only.

    Attributes:
        parts: tensors, with their places.
        blobs: serialised values, with their first bytes.
        kept: the index of values that are written to storage.
        rest: of values that stay in memory only.
        perhaps: of values for which rank 0's are saved. This rank's stay in memory, and are used if they are the same.
        kept_bytes: the bytes for storage.
        total_bytes: the bytes of the slot.
        alike: all tensors that should be the same on all ranks, by name, also those that other ranks keep.
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
        """The tensors that change only in an optimizer's step."""
        return [(spot, part) for spot, part in self.parts if part.slow]

    @property
    def on_gpu(self) -> bool:
        """Whether any tensor is on a GPU."""
        return any(part.tensor.is_cuda for _, part in self.parts)

    def copy_into(self, memory: memoryview) -> None:
        """Copy everything; `memory` has room for `total_bytes`."""
        self._copy_at_once(self.parts, memory)

    def copy_quick(self, memory: memoryview) -> None:
        """Copy everything except the slow parts."""
        self._copy_at_once([(spot, part) for spot, part in self.parts if not part.slow], memory)

    def copy_slow(self, memory: memoryview, device: torch.device) -> None:
        """Copy the slow parts on one device. For a GPU this only enqueues the copies."""
        _copy([(spot, part) for spot, part in self.slow_parts if part.tensor.device == device], memory)

    def _copy_at_once(self, parts: Collection[tuple[Location, _Part]], memory: memoryview) -> None:
        for at, data in self.blobs:
            memory[at : at + len(data)] = data
        try:
            _copy(parts, memory)
        finally:  # no copy may go on when the memory is reused
            for device in {part.tensor.device for _, part in parts if part.tensor.is_cuda}:
                torch.cuda.current_stream(device).synchronize()


def _copy(parts: Iterable[tuple[Location, _Part]], memory: memoryview) -> None:
    """Copy tensors. For those on a GPU this only enqueues the copies, as to wait for each small one would be slow."""
    for spot, part in parts:
        bands = part.tensor.split_with_sizes(spot.rows) if spot.rows else (part.tensor,)
        for at, band in zip(spot.begins, bands, strict=True):
            if count := band.numel():
                room = torch.frombuffer(memory, dtype=band.dtype, count=count, offset=at)
                room.view_as(band).copy_(band, non_blocking=band.is_cuda)


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
    parts: list[_Part] = []
    alike: list[tuple[str, torch.Tensor]] = []
    values: list[tuple[str, bytes]] = []
    # Ranks may differ in these, and rank 0's are saved. Those of other ranks are used if they turn out to be the same.
    perhaps: list[_Part] = []
    perhaps_values: list[tuple[str, bytes]] = []
    known = ties or {}
    own_ties: dict[str, str] = {}
    for key, value in flat.items():
        mine = key.startswith(own)
        if key in known:
            if place.rank == 0 or isinstance(value, DTensor):
                own_ties[key] = known[key]
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
                with contextlib.suppress(InvalidInput):  # rank 0's value may have another type
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
    kept = arranged.kept if ties is None else replace(arranged.kept, ties=own_ties)
    return replace(arranged, kept=kept, alike=dict(alike))


def _whole(key: str, tensor: torch.Tensor, *, kept: bool, slow: bool = False) -> _Part:
    shape = tuple(tensor.shape)
    extent = Extent(key, tensor.dtype, shape, (0,) * len(shape), shape)
    return _Part(extent, _as_it_is(tensor), kept, slow and _beside(tensor), tensor)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the same memory for a thread that copies it later, when the script may have replaced `.data`.

    Lazy conjugation and negation are resolved now. Else torch would apply them on the CPU after it has enqueued a GPU's
    copy, without waiting for the end of that copy.
    """
    own = tensor.detach()
    return own.resolve_conj().resolve_neg() if own.is_conj() or own.is_neg() else own


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


def _sharded(key: str, tensor: DTensor, *, slow: bool) -> _Part | None:
    """This rank's part of the tensor, if it has one."""
    mesh, placements = tensor.device_mesh, tensor.placements
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    local = _as_it_is(tensor.to_local())
    if not local.numel() and (tensor.numel() or any(coordinate)):
        return None  # the first rank still records a tensor without elements
    offsets, ranks, kept = _standing(tensor.shape, mesh, placements)
    extent = Extent(key, local.dtype, tuple(tensor.shape), offsets, tuple(local.shape), ranks)
    return _Part(extent, local, kept, slow and _beside(local), tensor)


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


def _share(alike: list[tuple[str, torch.Tensor]], place: RankPosition) -> list[_Part]:
    """This rank's share of the tensors that all ranks have alike."""
    sizes = tuple([(-tensor.numel() * tensor.itemsize, key) for key, tensor in alike])
    mine = [(*alike[number], kept) for number, kept in _shares(sizes, place)]
    return [_whole(key, tensor, kept=kept, slow=key.startswith(_SLOW)) for key, tensor, kept in mine]


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
    """Values that are side by side in a slot, and the byte after them."""

    parts: list[tuple[Location, _Part]]
    blobs: list[tuple[int, bytes]]
    index: Index
    end: int


def _stretch(parts: list[_Part], values: list[tuple[str, bytes]], begin: int) -> _ByteRange:
    """Place tensors and then values, from byte `begin` on."""
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
