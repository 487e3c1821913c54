"""What a checkpoint holds, by name (`read_plan` finds out which of it goes where in a state, `load` reads it).

Every byte that is read is compared with its checksum, and nothing is unpickled before its own bytes have been; and then
only what `safe_unpickling` lists is, as whoever can write files can write checksums.
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
        indexes: what the files named `.json` hold, by their keys.

    Raises:
        CheckpointDamaged: an index is not what was committed, or of a tensor not all is there.
    """

    def __init__(self, manifest: Manifest, indexes: Mapping[str, bytes]) -> None:
        self._manifest = manifest
        sizes = {file.key: file.size for file in manifest.files}
        # A piece may be there more than once: of a tensor on a mesh beside which there are others, each has it written.
        self._parts: dict[tuple[str, tuple[int, ...]], StoredEntry] = {}
        ties: dict[str, str] = {}
        self._tells_ties = False
        for file in index_files(manifest):
            key = file.key.removesuffix(".json") + ".bin"
            index, each = _index(file, indexes[file.key], sizes.get(key, 0))
            entries: list[TensorChunk | Blob] = [*index.pieces, *index.blobs]
            self._tells_ties |= index.ties is not None
            ties |= index.ties or {}
            for entry in entries:
                stored = StoredEntry(key, entry, each)
                self._parts[stored.part] = stored
        self._stored: dict[str, list[StoredEntry]] = defaultdict(list)
        for (name, _), stored in self._parts.items():
            self._stored[name].append(stored)
        for name, first in ties.items():
            # Of a sharded one, not every rank's part tells; and nobody need have written it by both.
            self._stored[name] = [*self._stored.get(first, ()), *self._stored.get(name, ())]
            if not self._stored[name]:
                raise CheckpointDamaged(f"{name} is to be {first}, which is not stored")
        for name in self._stored:
            self._check_whole(name)

    @cached_property
    def kinds(self) -> dict[str, TensorKind | None]:
        """What is stored, by its name: a tensor's kind; None for what is no tensor."""
        firsts = {key: entries[0].entry for key, entries in self._stored.items()}
        return {
            key: TensorKind(one.shape, getattr(torch, one.dtype)) if isinstance(one, TensorChunk) else None
            for key, one in firsts.items()
        }

    def room(self, name: str) -> torch.Tensor | None:
        """An empty tensor like the one that is stored under this name; None where that is no tensor."""
        kind = self.kinds[name]
        return None if kind is None else torch.empty(kind.shape, dtype=kind.dtype)

    def make_room(self, tensors: dict[str, torch.Tensor], below: str, *, exact: bool) -> None:
        """Have a tensor for each one that is stored below a name, whatever there is now.

        Args:
            tensors: by their names below that; those that are like what is stored are kept.
            below: the beginning of the names, with a dot at its end.
            exact: keep those of another dtype, too, for which `check_fit` refuses the checkpoint.
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
                room = torch.empty_like(room, dtype=kind.dtype)  # where, and in such parts, as that one is
            tensors[name] = room

    def _check_whole(self, name: str) -> None:
        """Here, where all ranks find the same, and not where each looks for its own part."""
        entries = [one.entry for one in self._stored[name]]
        pieces = [entry for entry in entries if isinstance(entry, TensorChunk)]
        if len({(piece.shape, piece.dtype) for piece in pieces}) > 1 or 0 < len(pieces) < len(entries):
            raise CheckpointDamaged(f"{name} is stored as several things that are no parts of one tensor")
        have, all_ = sum(prod(one.lengths) for one in pieces), prod(pieces[0].shape) if pieces else 0
        if have < all_:
            raise CheckpointDamaged(f"of {name}, {all_ - have} of {all_} numbers are stored nowhere")

    def plan(self, state: dict[str, Any], memory: Memory) -> StateLoader:
        """Find out what has to be read to fill this state; what is not stored is left as it is.

        Args:
            state: what is to be filled.
            memory: what need not be read from files.

        Raises:
            InvalidInput: the state holds tensors of a kind that cannot be filled, or one for two that are stored.
        """
        return StateLoader(plan_reads(state, self._stored, apart=self._tells_ties), self._manifest, memory)

    def confirmed(self, perhaps: Memory) -> Memory:
        """What in memory is, byte for byte, what was committed, of what may be something else."""

        def is_same(part: tuple[str, tuple[int, ...]]) -> bool:
            stored, (slot, at) = self._parts.get(part), perhaps[part]
            if stored is None:
                return False
            return is_what_was_committed(stored, OpenRange(slot.fileno(), at, stored.entry.size))

        with ThreadPoolExecutor(min(4, PROCESSORS)) as pool:
            found = list(pool.map(is_same, perhaps))
        return {part: held for (part, held), same in zip(perhaps.items(), found, strict=True) if same}

    def check_values(self, store: Store) -> None:
        """Unpickle what is no tensor, only to find out whether that can be done.

        Raises:
            CheckpointDamaged: it cannot.
            InvalidInput: it must not, as it is of a type that is not trusted.
        """
        for stored in chain.from_iterable(self._stored.values()):
            entry = stored.entry
            if isinstance(entry, Blob):
                from_bytes(entry.key, store.read_from(stored.file, entry.at, entry.size))


_BLOCK_BYTES = range(1, (16 << 20) + 1)  # each is read into memory before it is checked

# Ranks wait for it, and an index has thousands of entries: this takes a tenth of what `spec.codec` does.
_decode = msgspec.json.Decoder(Index).decode


def index_files(manifest: Manifest) -> list[StoredFile]:
    """Those files of a checkpoint that say what lies where in the others."""
    return [file for file in manifest.files if file.key.endswith(".json")]


def _index(file: StoredFile, data: bytes, size: int) -> tuple[Index, int]:
    """What lies where in a file of this size, and how large its blocks are."""
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
    """Raises ValueError where it is no part of a tensor: its checksum says only that somebody wrote it so."""
    each = _item_bytes(piece.dtype)
    if each is None:
        raise ValueError(f"{piece.key} is of no type of torch's: {piece.dtype}")
    for whole, at, length in zip(piece.shape, piece.offsets, piece.lengths, strict=True):
        if at < 0 or length < 0 or at + length > whole:
            raise ValueError(f"{piece.key} is no part of a tensor of {piece.shape}")
    if piece.size != prod(piece.lengths) * each:
        raise ValueError(f"{piece.key} has {piece.size} bytes for {piece.lengths} of {piece.dtype}")


@cache
def _item_bytes(dtype: str) -> int | None:
    """Of one number of a type of torch's; None where it is none."""
    found = getattr(torch, dtype, None)
    # Of quantised tensors the numbers alone would not do, and nobody writes them.
    return found.itemsize if isinstance(found, torch.dtype) and not dtype.startswith("q") else None
