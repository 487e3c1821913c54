"""Reading checkpoints into a state of any number of ranks: torch plans which bytes go where, this fetches them."""

from __future__ import annotations

import io
import json
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.store import Store
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.index import Blob, Index, Piece
from airflow_elastic.spec.manifest import Manifest


@contextmanager
def local_files(store: Store, manifest: Manifest) -> Iterator[Path]:
    """The checkpoint's files in a folder of this machine."""
    folder = store.local_path(manifest.data.rstrip("/"))
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="elastic-load-") as temporary:
        for file in manifest.files:
            store.download(file.key, Path(temporary, file.key.removeprefix(manifest.data)))
        yield Path(temporary)


class FlatReader(StorageReader):
    """The files of one checkpoint, whose bytes have been compared with the manifest before.

    Args:
        folder: where they lie.
        manifest: names them.

    Raises:
        CheckpointDamaged: an index cannot be read.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._where: dict[MetadataIndex, tuple[Path, Piece | Blob]] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self._stored: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for file in manifest.files:
            if file.key.endswith(".json"):
                path = folder / file.key.removeprefix(manifest.data)
                try:
                    index = decode(Index, json.loads(path.read_bytes()))
                except (ValueError, SpecError) as error:
                    raise CheckpointDamaged(f"{file.key} is no index of a rank's file: {error}") from error
                self._take(index, path.with_suffix(".bin"))

    @property
    def keys(self) -> frozenset[str]:
        """The names of all that is stored."""
        return frozenset(self._stored)

    def _take(self, index: Index, path: Path) -> None:
        for piece in index.pieces:
            offsets, lengths = torch.Size(piece.offsets), torch.Size(piece.lengths)
            whole = self._stored.get(piece.key)
            if not isinstance(whole, TensorStorageMetadata):
                properties = TensorProperties(dtype=getattr(torch, piece.dtype))
                whole = self._stored[piece.key] = TensorStorageMetadata(
                    properties, torch.Size(piece.shape), []
                )
            whole.chunks.append(ChunkStorageMetadata(offsets, lengths))
            self._where[MetadataIndex(piece.key, offsets)] = (path, piece)
        for blob in index.blobs:
            self._stored[blob.key] = BytesStorageMetadata()
            self._where[MetadataIndex(blob.key)] = (path, blob)

    # -- what torch asks for ---------------------------------------------------------------------------------------

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What is stored, in torch's words."""
        return Metadata(state_dict_metadata=dict(self._stored), storage_meta=StorageMeta())

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to do."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing to do: a reader is of one checkpoint."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Never asked: the manifest is what says which checkpoint it is."""
        return True

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy what the plan names to where it belongs."""
        for item in plan.items:
            path, entry = self._where[item.storage_index]
            data = memoryview(self._mapped(path))[entry.at : entry.at + entry.size]
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(data))
            elif isinstance(entry, Piece):
                target = planner.resolve_tensor(item).detach()
                target.copy_(_part(entry, data, item))
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _mapped(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            with path.open("rb") as file:
                # A copy of its own where somebody writes: torch warns of tensors that nobody may write to.
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return self._maps[path]


def _part(piece: Piece, data: memoryview, item: ReadItem) -> torch.Tensor:
    dtype = getattr(torch, piece.dtype)
    tensor = torch.frombuffer(data, dtype=dtype) if piece.size else torch.empty(0, dtype=dtype)
    tensor = tensor.view(piece.lengths)
    for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor
