"""The files of a checkpoint that one worker writes: for each rank its data, and an index of the data."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.storage.store import at_once
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.index import BLOCK_BYTES, Blob, Index, TensorChunk, blocks
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile
from airflow_elastic.spec.codec import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_elastic.adapters.storage.store import Pace, Store
    from airflow_elastic.runtime.tiers.shared_memory import Note, StagingSlot


def write_files(
    store: Store,
    held: Sequence[tuple[StagingSlot, Note]],
    folder: str,
    attempt: int,
    moved: Callable[[], None] = lambda: None,
    pace: Pace = at_once,
    by: int | None = None,
) -> tuple[list[StoredFile], list[StoredFile]]:
    """Write the staged state of a worker's ranks: for each rank two files, and the account of its samples.

    Args:
        store: where to write.
        held: the ranks' slots, locked for reading, with their notes.
        folder: folder of the checkpoint's data.
        attempt: number of the ranks' attempt.
        moved: called after each file.
        pace: limits the speed of the large files.
        by: number of the worker that writes for another one; None if the worker writes its own state.

    Returns:
        The files of the checkpoint, and the accounts.

    Raises:
        StoreError: the storage failed. It may have files that no record names.
    """
    files: list[StoredFile] = []
    accounts: list[StoredFile] = []
    for slot, note in held:
        (data, index_of), memory = file_keys(folder, note.rank, by), slot.data(note.kept_bytes)
        with ThreadPoolExecutor(1) as beside:
            described = beside.submit(_describe, store, index_of, note.kept, memory)
            store.write(data, memory, pace=pace)
            checksum, index = described.result()
            files += [_stored(data, len(memory), checksum), index]
        moved()
        if note.account is not None:  # before the checkpoint that it accounts for can be committed
            key = layout.account(attempt, note.generation, note.step, note.rank)
            account = json.dumps(encode(note.account)).encode()
            store.put(key, account)
            accounts.append(_stored(key, len(account), checksums.of(account)))
            moved()
    return files, accounts


def file_keys(folder: str, rank: int, by: int | None = None) -> tuple[str, str]:
    """The keys of one rank's files below a checkpoint's folder: its data, and the index of the data.

    If another worker writes them, they have other names: the worker that seems lost may still be writing its own.
    """
    name = f"{folder}rank-{rank:05d}" + ("" if by is None else f"-by-{by}")
    return f"{name}.bin", f"{name}.json"


def _describe(store: Store, key: str, kept: Index, data: memoryview) -> tuple[str, StoredFile]:
    """Write the index of a data file. Returns the checksum of the data file, and the index file."""
    index, checksum = _checked(kept, data)
    encoded = json.dumps(encode(index)).encode()
    store.write(key, memoryview(encoded))
    return checksum, _stored(key, len(encoded), checksums.of(encoded))


def _stored(key: str, size: int, checksum: str) -> StoredFile:
    return StoredFile(key, size, {checksums.ALGORITHM: checksum})


def manifest_of(note: Note, attempt: int, data: str, files: Sequence[StoredFile]) -> Manifest:
    """The checkpoint's manifest as far as one worker knows it: without the files of the other workers."""
    return Manifest(
        step=note.step,
        attempt=attempt,
        generation=note.generation,
        world_size=note.world_size,
        created_at=time.time(),
        data=data,
        files=tuple(files),
        epoch=note.epoch,
        samples=note.samples,
        offset=note.offset,
        metrics=note.metrics,
        reason=note.reason,
        versions=note.versions,
        phases=note.phases,
        notes=note.notes,
    )


def _checked(index: Index, data: memoryview) -> tuple[Index, str]:
    """The index with a checksum for each block of its entries, and the checksum of all the data. Reads the data once.

    Readers read only the blocks that they need, and check each one.
    """
    entries: list[TensorChunk | Blob] = [*index.pieces, *index.blobs]
    whole, done = checksums.Crc64(), 0
    of: dict[int, tuple[str, ...]] = {}
    for entry in sorted(entries, key=lambda one: one.at):
        whole.update(data[done : entry.at])
        found = []
        for begin, end in blocks(entry.size, BLOCK_BYTES):
            block = checksums.Crc64()
            block.update(data[entry.at + begin : entry.at + end])
            whole.append(block, end - begin)
            found.append(block.hexdigest())
        of[id(entry)], done = tuple(found), entry.at + entry.size
    whole.update(data[done:])
    described = replace(
        index,
        pieces=tuple(replace(piece, checksums=of[id(piece)]) for piece in index.pieces),
        blobs=tuple(replace(blob, checksums=of[id(blob)]) for blob in index.blobs),
        block_bytes=BLOCK_BYTES,
    )
    return described, whole.hexdigest()
