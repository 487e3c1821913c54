"""Reading checkpoints into a state of any number of ranks: torch plans which bytes go where, this fetches them.

Every byte is compared with its checksum while it is read, and nothing is unpickled before. Only what this rank needs is
read, straight into the tensors' own memory where it belongs there as it is.
"""

from __future__ import annotations

import io
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.runtime.stage import Memory
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.index import Blob, Index, Piece
from airflow_elastic.spec.manifest import Manifest, StoredFile

#: Read and checked at once: so much is still in the processor's cache when it is checked.
_CHUNK_BYTES = 1 << 20

#: Threads that read; the disk, or memory, is the limit soon.
_READERS = min(4, os.cpu_count() or 1)


class _Planner(DefaultLoadPlanner):
    """torch's, but values come to the CPU: those of all ranks would lie on the first GPU, where there is one."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        loaded = torch.load(
            value, map_location="cpu", weights_only=False
        )  # its bytes are those that we wrote
        set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], loaded)


class FlatReader:
    """The files of one checkpoint.

    Args:
        manifest: names them.
        indexes: what the files named `.json` hold, by their keys.

    Raises:
        CheckpointDamaged: an index is not what was committed.
    """

    def __init__(self, manifest: Manifest, indexes: Mapping[str, bytes]) -> None:
        self._manifest = manifest
        self._where: dict[MetadataIndex, tuple[str, Piece | Blob]] = {}
        self._stored: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for file in index_files(manifest):
            self._take(_index(file, indexes[file.key]), file.key.removesuffix(".json") + ".bin")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...] | None]:
        """What is stored, by its name: a tensor's shape; None for what is no tensor."""
        return {
            key: tuple(one.size) if isinstance(one, TensorStorageMetadata) else None
            for key, one in self._stored.items()
        }

    def room(self, name: str) -> torch.Tensor | None:
        """An empty tensor like the one that is stored under this name; None where that is no tensor."""
        stored = self._stored[name]
        if not isinstance(stored, TensorStorageMetadata):
            return None
        return torch.empty(stored.size, dtype=stored.properties.dtype)

    def _take(self, index: Index, key: str) -> None:
        for piece in index.pieces:
            offsets, lengths = torch.Size(piece.offsets), torch.Size(piece.lengths)
            whole = self._stored.get(piece.key)
            if not isinstance(whole, TensorStorageMetadata):
                properties = TensorProperties(dtype=getattr(torch, piece.dtype))
                whole = TensorStorageMetadata(properties, torch.Size(piece.shape), [])
                self._stored[piece.key] = whole
            whole.chunks.append(ChunkStorageMetadata(offsets, lengths))
            self._where[MetadataIndex(piece.key, offsets)] = (key, piece)
        for blob in index.blobs:
            self._stored[blob.key] = BytesStorageMetadata()
            self._where[MetadataIndex(blob.key)] = (key, blob)

    def plan(self, state: dict[str, Any], memory: Memory) -> Loading:
        """Find out what has to be read to fill this state; what is not stored is left as it is.

        Args:
            state: what is to be filled.
            memory: what need not be read from files.
        """
        planner = _Planner(allow_partial_load=True)
        planner.set_up_planner(state, Metadata(state_dict_metadata=dict(self._stored)), is_coordinator=False)
        return Loading(planner, planner.create_local_plan(), self._where, self._manifest, memory)


class Loading:
    """One state that is being filled from a checkpoint."""

    def __init__(
        self,
        planner: DefaultLoadPlanner,
        plan: LoadPlan,
        where: Mapping[MetadataIndex, tuple[str, Piece | Blob]],
        manifest: Manifest,
        memory: Memory,
    ) -> None:
        self._planner = planner
        self._items: dict[str, list[tuple[ReadItem, Piece | Blob]]] = defaultdict(list)
        self._held: list[tuple[ReadItem, Piece | Blob]] = []
        self._memory = memory
        for item in plan.items:
            key, entry = where[item.storage_index]
            (self._held if _name(entry) in memory else self._items[key]).append((item, entry))
        self.files = [file for file in manifest.files if file.key in self._items]
        self.memory_bytes = sum(entry.size for _, entry in self._held)
        self.file_bytes = sum(entry.size for items in self._items.values() for _, entry in items)

    def read(self, folder: Path, prefix: str) -> None:
        """Read everything. What was read before something turned out to be damaged is in the state already.

        Args:
            folder: where the files lie.
            prefix: what their keys have before their names there.

        Raises:
            CheckpointDamaged: something is not what was committed. Nothing of it was unpickled.
        """
        with ThreadPoolExecutor(_READERS) as readers:
            reads = [
                readers.submit(self._read, folder / file.key.removeprefix(prefix), file, part)
                for file in self.files
                for part in _shares(self._items[file.key])
            ]
            reads += [readers.submit(self._read_memory, part) for part in _shares(self._held)]
            for one in reads:
                one.result()

    def _read(self, path: Path, file: StoredFile, items: Iterable[tuple[ReadItem, Piece | Blob]]) -> None:
        try:
            with path.open("rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                if size != file.size:
                    raise CheckpointDamaged(f"{file.key} has {size} bytes instead of {file.size}")
                for item, entry in items:
                    self._fill(item, entry, (opened.fileno(), entry.at), file.key)
        except FileNotFoundError:
            raise CheckpointDamaged(f"{file.key} is missing") from None
        except OSError as error:
            raise CheckpointDamaged(f"{file.key} cannot be read: {error.strerror}") from None

    def _read_memory(self, items: Iterable[tuple[ReadItem, Piece | Blob]]) -> None:
        for item, entry in items:
            slot, at = self._memory[_name(entry)]
            self._fill(item, entry, (slot.fileno(), at), "the memory of this worker's agent")

    def _fill(self, item: ReadItem, entry: Piece | Blob, place: tuple[int, int], key: str) -> None:
        if isinstance(entry, Blob) or item.type is LoadItemType.BYTE_IO:
            memory = bytearray(entry.size)
            _read_checked(place, entry, memoryview(memory), key)
            self._planner.load_bytes(item, io.BytesIO(memory))
            return
        target = self._planner.resolve_tensor(item).detach()
        dtype = getattr(torch, entry.dtype)
        whole = tuple(item.lengths) == entry.lengths
        if whole and target.dtype is dtype and target.device.type == "cpu" and target.is_contiguous():
            _read_checked(place, entry, _memory_of(target), key)
        else:
            stored = torch.empty(entry.lengths, dtype=dtype)
            _read_checked(place, entry, _memory_of(stored), key)
            for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                stored = stored.narrow(dim, start, length)
            target.copy_(stored)
        self._planner.commit_tensor(item, target)


def index_files(manifest: Manifest) -> list[StoredFile]:
    """Those files of a checkpoint that say what lies where in the others."""
    return [file for file in manifest.files if file.key.endswith(".json")]


def _index(file: StoredFile, data: bytes) -> Index:
    if len(data) != file.size:
        missing = f"has {len(data)} bytes instead of {file.size}" if data else "is missing"
        raise CheckpointDamaged(f"{file.key} {missing}")
    if file.checksums.get(checksums.ALGORITHM) != checksums.of(data):
        raise CheckpointDamaged(f"{file.key} is not what was committed: its bytes have changed")
    try:
        return decode(Index, json.loads(data))
    except (ValueError, SpecError) as error:
        raise CheckpointDamaged(f"{file.key} is no index of a rank's file: {error}") from error


def _shares(items: list[tuple[ReadItem, Piece | Blob]]) -> list[list[tuple[ReadItem, Piece | Blob]]]:
    """The same in runs of neighbours of about equal size, one for each reader."""
    items = sorted(items, key=lambda one: one[1].at)
    limit = sum(entry.size for _, entry in items) / _READERS
    shares: list[list[tuple[ReadItem, Piece | Blob]]] = [[]]
    size = 0
    for item, entry in items:
        if size > limit:
            shares.append([])
            size = 0
        shares[-1].append((item, entry))
        size += entry.size
    return shares


def _name(entry: Piece | Blob) -> tuple[str, tuple[int, ...]]:
    return (entry.key, entry.offsets if isinstance(entry, Piece) else ())


def _memory_of(tensor: torch.Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def _read_checked(place: tuple[int, int], entry: Piece | Blob, room: memoryview, key: str) -> None:
    """Fill `room` with the bytes of an entry, which begins at a byte of an open file."""
    (file, begin), digest, at = place, checksums.Crc64(), 0
    while at < entry.size:
        part = room[at : at + _CHUNK_BYTES]
        read = os.preadv(file, [part], begin + at)
        if not read:
            break
        digest.update(part[:read])
        at += read
    if at < entry.size or digest.hexdigest() != entry.checksum:
        raise CheckpointDamaged(f"{entry.key} in {key} is not what was committed: its bytes have changed")
