"""The contents of a checkpoint, by name. `read_plan` plans how they fill a state, and `load` reads them.

All bytes that are read are compared with checksums, and values are unpickled only after that. As anyone who can write
files can also write checksums, only the types in `safe_unpickling` are unpickled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import chain
from math import prod
from typing import Any

import msgspec
import torch

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.open_range import OpenRange
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.format.compatibility import TensorKind
from airflow_elastic.runtime.checkpoint.format.values import from_bytes
from airflow_elastic.runtime.checkpoint.read.fill import is_what_was_committed
from airflow_elastic.runtime.checkpoint.read.load import StateLoader
from airflow_elastic.runtime.checkpoint.read.read_plan import StoredEntry, plan_reads
from airflow_elastic.runtime.environment import PROCESSORS
from airflow_elastic.runtime.tiers.shared_memory import Memory
from airflow_elastic.spec.checkpoints.index import FORMER_BLOCK_BYTES, Blob, Index, TensorChunk, block_count
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile


class CheckpointReader:
    """The files of one checkpoint.

    Args:
        manifest: names them.
        indexes: the contents of the index files (`.json`), by key.

    Raises:
        CheckpointDamaged: the bytes of an index have changed, or a part of a tensor is missing.
    """

    def __init__(self, manifest: Manifest, indexes: Mapping[str, bytes]) -> None:
        self._manifest = manifest
        sizes = {file.key: file.size for file in manifest.files}
        # Several files may hold the same piece: if each of several device meshes has the tensor, each has written it.
        self._parts: dict[tuple[str, tuple[int, ...]], StoredEntry] = {}
        ties: dict[str, str] = {}
        self._knows_ties = False
        for file in index_files(manifest):
            key = file.key.removesuffix(".json") + ".bin"
            index, each = _index(file, indexes[file.key], sizes.get(key, 0))
            entries: list[TensorChunk | Blob] = [*index.pieces, *index.blobs]
            self._knows_ties |= index.ties is not None
            ties |= index.ties or {}
            for entry in entries:
                stored = StoredEntry(key, entry, each)
                self._parts[stored.part] = stored
        self._stored: dict[str, list[StoredEntry]] = defaultdict(list)
        for (name, _), stored in self._parts.items():
            self._stored[name].append(stored)
        for name, first in ties.items():
            # Parts of tied weights may be stored under either name, as a rank without elements does not see the tie.
            self._stored[name] = [*self._stored.get(first, ()), *self._stored.get(name, ())]
            if not self._stored[name]:
                raise CheckpointDamaged(f"{name} is tied to {first}, which is not stored")
        for name in self._stored:
            self._check_whole(name)

    @cached_property
    def kinds(self) -> dict[str, TensorKind | None]:
        """The kind of each tensor, by name; None for a value that is no tensor."""
        firsts = {key: entries[0].entry for key, entries in self._stored.items()}
        return {
            key: TensorKind(one.shape, getattr(torch, one.dtype)) if isinstance(one, TensorChunk) else None
            for key, one in firsts.items()
        }

    def room(self, name: str) -> torch.Tensor | None:
        """An empty tensor of the kind that is stored under this name; None if no tensor is."""
        kind = self.kinds[name]
        return None if kind is None else torch.empty(kind.shape, dtype=kind.dtype)

    def make_room(self, tensors: dict[str, torch.Tensor], below: str, *, exact: bool) -> None:
        """Make `tensors` have one tensor for each stored one whose name begins with a prefix, and no others.

        Args:
            tensors: by their names without the prefix. Those that have the stored shape and dtype stay.
            below: the prefix, with a dot at its end.
            exact: also keep tensors of another dtype, so that `check_fit` refuses the checkpoint.
        """
        own = dict(tensors)
        tensors.clear()
        for key, kind in self.kinds.items():
            if kind is None or not key.startswith(below):
                continue
            name = key.removeprefix(below)
            room = own.get(name)
            if room is None or tuple(room.shape) != kind.shape:
                room = torch.empty(kind.shape, dtype=kind.dtype)
            elif room.dtype != kind.dtype and not exact:
                room = torch.empty_like(room, dtype=kind.dtype)  # on the same device, sharded alike
            tensors[name] = room

    def _check_whole(self, name: str) -> None:
        """Raise CheckpointDamaged if a tensor is not complete. All ranks check whole tensors, so all find the same."""
        entries = [one.entry for one in self._stored[name]]
        pieces = [entry for entry in entries if isinstance(entry, TensorChunk)]
        if len({(piece.shape, piece.dtype) for piece in pieces}) > 1 or 0 < len(pieces) < len(entries):
            raise CheckpointDamaged(f"{name} is stored as several values that are not parts of one tensor")
        have, all_ = sum(prod(one.lengths) for one in pieces), prod(pieces[0].shape) if pieces else 0
        if have < all_:
            raise CheckpointDamaged(f"{all_ - have} of the {all_} elements of {name} are missing")

    def plan(self, state: dict[str, Any], memory: Memory) -> StateLoader:
        """Plan how to fill a state. Values that are not stored stay as they are.

        Args:
            state: the state to fill.
            memory: entries that can be read from memory instead of files.

        Raises:
            InvalidInput: the state holds tensors of a kind that cannot be filled, or one tensor for two stored ones.
        """
        return StateLoader(plan_reads(state, self._stored, apart=self._knows_ties), self._manifest, memory)

    def confirmed(self, perhaps: Memory) -> Memory:
        """The entries in memory whose bytes match the checkpoint's checksums; `perhaps` may hold other values, too."""

        def is_same(part: tuple[str, tuple[int, ...]]) -> bool:
            stored, (slot, at) = self._parts.get(part), perhaps[part]
            if stored is None:
                return False
            return is_what_was_committed(stored, OpenRange(slot.fileno(), at, stored.entry.size))

        with ThreadPoolExecutor(min(4, PROCESSORS)) as pool:
            found = list(pool.map(is_same, perhaps))
        return {part: held for (part, held), same in zip(perhaps.items(), found, strict=True) if same}

    def check_values(self, store: Store) -> None:
        """Unpickle all values that are no tensors, as a check.

        Raises:
            CheckpointDamaged: a value cannot be unpickled.
            InvalidInput: a value has a type that is not trusted.
        """
        for stored in chain.from_iterable(self._stored.values()):
            entry = stored.entry
            if isinstance(entry, Blob):
                from_bytes(entry.key, store.read_from(stored.file, entry.at, entry.size))


_BLOCK_BYTES = range(1, (16 << 20) + 1)  # each is read into memory before it is checked

# Ranks wait for this, and an index has thousands of entries: it takes a tenth of the time of `spec.codec`.
_decode = msgspec.json.Decoder(Index).decode


def index_files(manifest: Manifest) -> list[StoredFile]:
    """The index files of a checkpoint: each lists the entries of another file, with their places."""
    return [file for file in manifest.files if file.key.endswith(".json")]


def _index(file: StoredFile, data: bytes, size: int) -> tuple[Index, int]:
    """The decoded and checked index of a file of `size` bytes, and the size of its blocks."""
    if len(data) != file.size:
        missing = f"has {len(data)} bytes instead of {file.size}" if data else "is missing"
        raise CheckpointDamaged(f"{file.key} {missing}")
    if file.checksums.get(checksums.ALGORITHM) != checksums.of(data):
        raise CheckpointDamaged(f"{file.key} is not what was committed: its bytes have changed")
    try:
        index = _decode(data)
        for piece in index.pieces:
            _check(piece)
        entries: list[TensorChunk | Blob] = [*index.pieces, *index.blobs]
        each = FORMER_BLOCK_BYTES if index.block_bytes is None else index.block_bytes
        if each not in _BLOCK_BYTES:
            raise ValueError(f"blocks of {each} bytes")
        for entry in entries:
            if entry.at < 0 or entry.size < 0 or len(entry.checksums) != block_count(entry.size, each):
                raise ValueError(
                    f"{entry.key} has {len(entry.checksums)} checksums for {entry.size} bytes from {entry.at} on"
                )
            if entry.at + entry.size > size:
                raise ValueError(f"{entry.key} ends at byte {entry.at + entry.size} of {size}")
    except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors, too
        raise CheckpointDamaged(f"{file.key} is no index of a rank's file: {error}") from error
    return index, each


def _check(piece: TensorChunk) -> None:
    """Raise ValueError if it cannot be a part of a tensor. A correct checksum does not make its numbers valid."""
    each = _item_bytes(piece.dtype)
    if each is None:
        raise ValueError(f"{piece.key} has a dtype that torch does not have: {piece.dtype}")
    for whole, at, length in zip(piece.shape, piece.offsets, piece.lengths, strict=True):
        if at < 0 or length < 0 or at + length > whole:
            raise ValueError(f"{piece.key} is no part of a tensor of {piece.shape}")
    if piece.size != prod(piece.lengths) * each:
        raise ValueError(f"{piece.key} has {piece.size} bytes for {piece.lengths} of {piece.dtype}")


@cache
def _item_bytes(dtype: str) -> int | None:
    """The bytes of one element of a torch dtype; None if it is no such dtype."""
    found = getattr(torch, dtype, None)
    # Quantised tensors need more than their elements, and are never saved.
    return found.itemsize if isinstance(found, torch.dtype) and not dtype.startswith("q") else None
