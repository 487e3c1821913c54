"""The read plan: which bytes of a checkpoint go where in a state. It reshards, because the world size may have changed.

A tensor is stored in pieces that do not overlap. A rank reads the intersections of these pieces with its own part.
The planner of torch.distributed.checkpoint does the same from its own metadata, but took a fifth of the reading time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.tensors.overlap import overlaps
from airflow_elastic.runtime.checkpoint.tensors.sharding import (
    SHARDED_TENSOR,
    WRAPPER,
    is_wrapper,
    offsets_of,
)
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import ties_among
from airflow_elastic.spec.checkpoints.index import Blob, TensorChunk
from airflow_elastic.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a checkpoint, the key of its file, and the size of the blocks that have checksums."""

    file: str
    entry: TensorChunk | Blob
    block_bytes: int

    @property
    def part(self) -> tuple[str, tuple[int, ...]]:
        """Its name, and its offsets in the tensor of that name."""
        return self.entry.key, self.entry.offsets if isinstance(self.entry, TensorChunk) else ()


@dataclass(frozen=True, slots=True)
class ReadItem:
    """A part of an entry, and where it goes.

    Attributes:
        stored: the entry.
        start: the index in the entry at which the part begins, in each dimension.
        room: a tensor of the state; for a value that is no tensor, a function that takes it.
        begins: the index in `room` at which the part begins, in each dimension.
        lengths: of the part, in each dimension.
        memory: the bytes of `room`, if the entry can be read straight into it.
    """

    stored: StoredEntry
    start: tuple[int, ...]
    room: torch.Tensor | Callable[[Any], None]
    begins: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    memory: memoryview | None = None

    @property
    def target(self) -> torch.Tensor | None:
        """The part of `room` that is filled; None if it is no tensor."""
        room = self.room
        if not isinstance(room, torch.Tensor):
            return None
        for dim, (begin, length) in enumerate(zip(self.begins, self.lengths, strict=True)):
            if room.shape[dim] != length:
                room = room.narrow(dim, begin, length)
        return room

    def rows(self) -> tuple[int, int] | None:
        """The range of needed bytes in the entry, if the part consists of whole rows; else None.

        Whole rows are contiguous in the entry, and in `room` if it has `memory`.
        """
        entry = self.stored.entry
        if isinstance(entry, Blob) or not isinstance(self.room, torch.Tensor):
            return None
        if not entry.lengths:
            return 0, entry.size
        if any(self.start[1:]) or self.lengths[1:] != entry.lengths[1:]:
            return None
        row = entry.size // entry.lengths[0]
        return self.start[0] * row, (self.start[0] + self.lengths[0]) * row

    def place(self) -> memoryview | None:
        """The memory into which the needed rows can be read; None if they have to be copied into `room` later."""
        if self.memory is None or not isinstance(self.room, torch.Tensor):
            return None
        if not self.lengths:
            return self.memory
        if self.lengths[1:] != self.room.shape[1:]:
            return None
        row = len(self.memory) // self.room.shape[0]
        return self.memory[self.begins[0] * row : (self.begins[0] + self.lengths[0]) * row]


def plan_reads(
    state: dict[str, Any], stored: Mapping[str, Sequence[StoredEntry]], *, apart: bool = False
) -> list[ReadItem]:
    """Plan which entries fill a state. Values that are not stored stay as they are.

    Args:
        state: nested dicts and lists, with tensors and other values as leaves.
        stored: the entries of each name; the pieces of a tensor make it up.
        apart: whether the checkpoint says which names were tied, so that two stored tensors were not one.

    Raises:
        InvalidInput: the state holds tensors of a kind that cannot be filled, or without memory. Or one tensor has two
            names (tied weights), and they are stored as two tensors.
    """
    flat, paths = flatten_state_dict(state)
    ties = ties_among({key: one for key, one in flat.items() if key.startswith("model.")})
    found: list[ReadItem] = []
    for key, value in flat.items():
        if (tied := ties.get(key)) is not None and tied in stored and key in stored:
            is_one = stored[key][0] is stored[tied][0]
            if apart and not is_one:
                raise InvalidInput(
                    f"{tied} and {key} are one tensor in the script (tied weights), but two in the checkpoint. Tie "
                    "weights only as they were tied when it was saved"
                )
            if is_one and not overlaps(value):
                continue  # read under its first name
        entries = stored.get(key)
        if not entries:
            continue
        first = entries[0].entry
        if is_wrapper(value):
            raise InvalidInput(WRAPPER.format(key, type(value).__name__))
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise InvalidInput(
                f"{key} is on the meta device, where tensors have no memory: give it memory before run.restore"
            )
        if isinstance(first, Blob):
            found.append(ReadItem(entries[0], (), partial(_put, state, paths[key])))
        elif isinstance(value, DTensor):
            found += _of_part(value, entries)
        elif type(value).__name__ == "ShardedTensor":
            raise InvalidInput(SHARDED_TENSOR.format(key))
        else:
            room = value if isinstance(value, torch.Tensor) else torch.empty(0)
            dtype = getattr(torch, first.dtype)
            # A setting of an optimizer may have changed its kind, and nothing can be read into a tensor that overlaps.
            if (tuple(room.shape), room.dtype) != (first.shape, dtype) or overlaps(room):
                room = torch.empty(first.shape, dtype=dtype)
                _put(state, paths[key], room)
            found += parts(room.detach(), (0,) * room.dim(), entries)
    return found


def _put(state: Any, path: Sequence[str | int], value: Any) -> None:
    """Put a value into a nested state. torch's paths have strings as keys, but a dict may have other types."""
    for part in path[:-1]:
        state = state[_key(state, part)]
    state[_key(state, path[-1])] = value


def _key(container: Any, part: str | int) -> Any:
    if isinstance(container, Mapping) and part not in container:
        return next((key for key in container if str(key) == part), part)
    return part


def _of_part(tensor: DTensor, entries: Sequence[StoredEntry]) -> Iterator[ReadItem]:
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return iter(())
    if any(at and how.is_partial("sum") for at, how in zip(coordinate, tensor.placements, strict=True)):
        tensor.to_local().detach().zero_()  # the first rank gets the whole sum
        return iter(())
    return parts(tensor.to_local().detach(), offsets_of(tensor), entries)


def parts(
    target: torch.Tensor, offsets: tuple[int, ...], entries: Sequence[StoredEntry]
) -> Iterator[ReadItem]:
    """The items that fill a part of a tensor.

    Args:
        target: the part.
        offsets: the index in the tensor at which it begins, in each dimension.
        entries: the pieces of the tensor.
    """
    memory = _memory(target, entries)
    sizes = tuple(target.shape)
    for stored in entries if target.numel() else ():
        piece = stored.entry
        if isinstance(piece, Blob):
            continue
        start, begins, lengths = [], [], []
        for mine, size, theirs, length in zip(offsets, sizes, piece.offsets, piece.lengths, strict=True):
            low = mine if mine > theirs else theirs
            count = min(mine + size, theirs + length) - low
            if count <= 0:
                break
            start.append(low - theirs)
            begins.append(low - mine)
            lengths.append(count)
        else:
            yield ReadItem(stored, tuple(start), target, tuple(begins), tuple(lengths), memory)


def _memory(target: torch.Tensor, entries: Sequence[StoredEntry]) -> memoryview | None:
    """The memory of a tensor, if such entries can be read straight into it."""
    first = entries[0].entry
    if isinstance(first, Blob) or getattr(torch, first.dtype) is not target.dtype or not target.numel():
        return None
    if target.device.type != "cpu" or not target.is_contiguous() or target.is_conj() or target.is_neg():
        return None
    return bytes_of(target)


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU that has elements."""
    flat = tensor.as_strided((tensor.numel(),), (1,))  # view(-1) may keep another stride
    return flat.view(torch.uint8).numpy().data
