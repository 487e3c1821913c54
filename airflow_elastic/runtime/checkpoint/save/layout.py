"""The places of a state in a slot, and the copy of it. Training waits for both, so what stays the same is kept.

`Places` depend only on names, sizes and devices. A `Layout` is a state with its places.

All tensors of a device are copied by one call: `torch._foreach_copy_` issues the copies without Python's lock. From a
GPU it makes one `cudaMemcpyAsync` for each tensor, like `copy_`. A CUDA graph or `cudaMemcpyBatchAsync` would take one
call of the driver, but need the addresses of all tensors to stay, or CUDA 12.8. The thread that issues them holds up
nobody, so this is not worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.file_layout import Extent, Location, aligned
from airflow_elastic.runtime.tiers.shared_memory import COUNT
from airflow_elastic.spec.checkpoints.index import Blob, Index


class Part(NamedTuple):
    """A tensor to copy, or this rank's part of it.

    Attributes:
        extent: its name, dtype and shape.
        spot: its place.
        leaf: its number among all values of the state.
        slow: only an optimizer's step changes it.
        device: where it is.
        odd: it must be looked at before each copy, because it may be conjugated or negated lazily.
    """

    extent: Extent
    spot: Location
    leaf: int
    slow: bool
    device: torch.device
    odd: bool

    @property
    def key(self) -> str:
        """Its name in the state."""
        return self.extent.key


class Value(NamedTuple):
    """A value that is no tensor: its name, its number among all values, and whether it is only used `perhaps`."""

    key: str
    leaf: int
    perhaps: bool


class _Group:
    """Parts that are copied by one call: those on one device that are slow, or those that are not."""

    def __init__(self, device: torch.device, slow: bool, parts: Sequence[tuple[int, Part]]) -> None:
        self.device, self.slow = device, slow
        self._parts = [part for _, part in parts]
        self._of = _items([number for number, _ in parts])
        self._cut = any(part.spot.rows for part in self._parts)

    def rooms(self, memory: memoryview) -> list[torch.Tensor]:
        """Its places in this memory."""
        found = []
        for part in self._parts:
            dtype, (count, *more) = part.extent.dtype, part.extent.lengths or (1,)
            for at, rows in zip(part.spot.begins, part.spot.rows or (count,), strict=True):
                shape = torch.Size((rows, *more) if part.extent.lengths else ())
                room = torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=at)
                found.append(room.view(shape))
        return found

    def bands(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Its tensors, cut into the bands that have places."""
        mine = self._of(tensors)
        if not self._cut:
            return mine
        return [
            band
            for tensor, part in zip(mine, self._parts, strict=True)
            for band in (tensor.split_with_sizes(part.spot.rows) if part.spot.rows else (tensor,))
        ]


@dataclass(frozen=True, eq=False)
class Places:
    """What states with the same tensors have in common.

    Attributes:
        parts: the tensors, in the order of the slot: those for storage, those for memory only, and those used perhaps.
        values: all other values.
        alike: keys of the tensors that should be the same on all ranks, with their numbers among all values. Also those
            that other ranks keep.
        stored: the tensors for storage. Values follow from byte `stored_end` on, and end before `rest_begin`; None if
            nothing follows them.
        rest: the tensors that stay in memory only.
        behind: the tensors that are used perhaps, see `Layout`. Values follow from byte `behind_end` on.
        ties: see `Index.ties`.
        reusable: False if other leaves must not take these places, even if they look the same.
    """

    parts: tuple[Part, ...]
    values: tuple[Value, ...]
    alike: tuple[tuple[str, int], ...]
    stored: Index
    stored_end: int
    rest_begin: int | None
    rest: Index
    behind: Index
    behind_end: int
    ties: Mapping[str, str] | None = None
    reusable: bool = True
    _rooms: list[tuple[Any, list[list[torch.Tensor]]]] = field(default_factory=list, repr=False)

    @cached_property
    def groups(self) -> tuple[_Group, ...]:
        """Parts with elements, by device and by whether they are slow."""
        found: dict[tuple[torch.device, bool], list[tuple[int, Part]]] = {}
        for number, part in enumerate(self.parts):
            if part.extent.size:
                found.setdefault((part.device, part.slow), []).append((number, part))
        return tuple(_Group(*kind, parts) for kind, parts in found.items())

    @cached_property
    def _leaves(self) -> Callable[[Sequence[Any]], Sequence[Any]]:
        return _items([part.leaf for part in self.parts])

    @cached_property
    def _odd(self) -> list[int]:
        return [number for number, part in enumerate(self.parts) if part.odd]

    def rooms(self, memory: memoryview) -> list[list[torch.Tensor]]:
        """For each group, its places in a slot's memory. The last ones are kept: a rank has two slots."""
        whole = memory.obj
        for held, rooms in self._rooms:
            if held is whole:
                return rooms
        rooms = [group.rooms(memory) for group in self.groups]
        self._rooms[:] = [*self._rooms[1 - COUNT :], (whole, rooms)]
        return rooms

    def of(self, leaves: Sequence[Any], data: Sequence[bytes]) -> Layout | None:
        """A state in these places.

        Args:
            leaves: all its values.
            data: of `values`, serialised.

        Returns:
            None if there is no room for `data`.
        """
        kept, perhaps, at, behind = [], [], self.stored_end, self.behind_end
        blobs = []
        for value, text in zip(self.values, data, strict=True):
            size = len(text)
            if value.perhaps:
                perhaps.append(Blob(value.key, behind, size))
                blobs.append((behind, text))
                behind += size
            else:
                kept.append(Blob(value.key, at, size))
                blobs.append((at, text))
                at += size
        if self.rest_begin is not None and at > self.rest_begin:
            return None
        sources = self._leaves(leaves)
        tensors = [*sources]
        if DTensor in {*map(type, sources)}:
            tensors = [one._local_tensor if type(one) is DTensor else one for one in sources]
        for number in self._odd:
            tensors[number] = _resolved(tensors[number])
        return Layout(
            places=self,
            tensors=tensors,
            sources=sources,
            leaves=leaves,
            blobs=blobs,
            kept=Index(self.stored.pieces, tuple(kept), ties=None if self.ties is None else {**self.ties}),
            rest=self.rest,
            perhaps=Index(self.behind.pieces, tuple(perhaps)),
            kept_bytes=at,
            total_bytes=aligned(max(at, behind)),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """A state and its places in a slot: first the values for storage, then those for memory only.

    Attributes:
        places: of its tensors.
        tensors: in the order of `places.parts`; of sharded tensors, this rank's parts.
        sources: the same, but the sharded tensors themselves: their version counters show changes.
        leaves: all values of the state.
        blobs: serialised values, with their first bytes.
        kept: the index of values that are written to storage.
        rest: of values that stay in memory only.
        perhaps: of values for which rank 0's are saved. This rank's stay in memory, and are used if they are the same.
        kept_bytes: the bytes for storage.
        total_bytes: the bytes of the slot.
    """

    places: Places
    tensors: Sequence[torch.Tensor]
    sources: Sequence[torch.Tensor]
    leaves: Sequence[Any]
    blobs: Sequence[tuple[int, bytes]]
    kept: Index
    rest: Index
    perhaps: Index
    kept_bytes: int
    total_bytes: int

    @property
    def alike(self) -> dict[str, torch.Tensor]:
        """All tensors that should be the same on all ranks, by name, also those that other ranks keep."""
        return {key: self.leaves[leaf] for key, leaf in self.places.alike}

    @property
    def slow_sources(self) -> list[torch.Tensor]:
        """The tensors that change only in an optimizer's step."""
        return [source for part, source in zip(self.places.parts, self.sources, strict=True) if part.slow]

    @property
    def gpus(self) -> list[torch.device]:
        """The GPUs that have any of its tensors."""
        return [*{group.device: None for group in self.places.groups if group.device.type == "cuda"}]

    @torch.no_grad()
    def held(self) -> Layout:
        """The same with tensors of its own, for a thread that copies them later, when the script may have replaced
        `.data`.
        """
        tensors = [one.detach() for one in self.tensors]
        return Layout(
            *(self.places, tensors, self.sources, (), self.blobs, self.kept, self.rest, self.perhaps),
            *(self.kept_bytes, self.total_bytes),
        )

    def copy_into(self, memory: memoryview) -> None:
        """Copy everything; `memory` has room for `total_bytes`."""
        self._copy_at_once(memory, lambda group: True)

    def copy_quick(self, memory: memoryview) -> None:
        """Copy everything except the slow parts."""
        self._copy_at_once(memory, lambda group: not group.slow)

    def copy_slow(self, memory: memoryview, device: torch.device) -> None:
        """Copy the slow parts on one device. For a GPU this only enqueues the copies."""
        self._copy(memory, lambda group: group.slow and group.device == device)

    def _copy_at_once(self, memory: memoryview, which: Callable[[_Group], bool]) -> None:
        for at, data in self.blobs:
            memory[at : at + len(data)] = data
        try:
            self._copy(memory, which)
        finally:  # no copy may go on when the memory is reused
            for device in {
                one.device for one in self.places.groups if which(one) and one.device.type == "cuda"
            }:
                torch.cuda.current_stream(device).synchronize()

    @torch.no_grad()
    def _copy(self, memory: memoryview, which: Callable[[_Group], bool]) -> None:
        for group, rooms in zip(self.places.groups, self.places.rooms(memory), strict=True):
            if which(group):
                _copy_all(rooms, [*group.bands(self.tensors)], on_gpu=group.device.type == "cuda")


def _copy_all(rooms: list[torch.Tensor], tensors: list[torch.Tensor], *, on_gpu: bool) -> None:
    """Copy tensors. For those on a GPU this only enqueues the copies: to wait for each small one would be slow."""
    torch._foreach_copy_(rooms, tensors, non_blocking=on_gpu)


def is_odd(tensor: torch.Tensor) -> bool:
    """Whether it may be conjugated or negated lazily, now or later. Only views of complex numbers are."""
    if tensor.layout is not torch.strided:
        return False
    return tensor.is_complex() or tensor.is_neg() or not tensor.is_contiguous()


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without lazy conjugation and negation.

    Else torch would apply them on the CPU after it has enqueued a GPU's copy, without waiting for the end of that copy.
    """
    if not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg()


def _items(numbers: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A fast function that takes the items with these numbers."""
    if len(numbers) < 2:
        return lambda items: [items[number] for number in numbers]
    return itemgetter(*numbers)
