"""What a checkpoint holds, and which of it a state of any number of ranks needs: that torch plans (`loading` reads it).

Every byte that is read is compared with its checksum, and nothing is unpickled before its own bytes have been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from airflow_elastic.adapters import checksums
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.runtime.loading import Loading, Planner
from airflow_elastic.runtime.stage import Memory
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.index import Blob, Index, Piece
from airflow_elastic.spec.manifest import Manifest, StoredFile


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
        planner = Planner(allow_partial_load=True)
        planner.set_up_planner(state, Metadata(state_dict_metadata=dict(self._stored)), is_coordinator=False)
        return Loading(planner, planner.create_local_plan(), self._where, self._manifest, memory)


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
