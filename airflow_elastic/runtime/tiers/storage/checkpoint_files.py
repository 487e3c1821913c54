"""The files of a checkpoint that one worker writes: what its ranks have staged, and what lies where in it."""

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
    """Write what the ranks of a worker have staged, two files each, and accounts of their samples.

    Args:
        store: where to.
        held: slots, held for reading, with what they hold.
        folder: of the checkpoint's data.
        attempt: number of theirs.
        moved: called after each file.
        pace: of the large ones.
        by: number of the worker that writes what another one has staged.

    Returns:
        The files of the checkpoint, and the accounts.

    Raises:
        StoreError: the storage failed. Files may be there that nobody knows of.
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
        if note.account is not None:  # before anything that it accounts for can count
            key = layout.account(attempt, note.generation, note.step, note.rank)
            told = json.dumps(encode(note.account)).encode()
            store.put(key, told)
            accounts.append(_stored(key, len(told), checksums.of(told)))
            moved()
    return files, accounts


def file_keys(folder: str, rank: int, by: int | None = None) -> tuple[str, str]:
    """The files of one rank below a checkpoint's folder: its data, and what lies where in it.

    Those that another worker has written have names of their own: the one that is taken to be lost may be writing, too.
    """
    name = f"{folder}rank-{rank:05d}" + ("" if by is None else f"-by-{by}")
    return f"{name}.bin", f"{name}.json"


def _describe(store: Store, key: str, kept: Index, data: memoryview) -> tuple[str, StoredFile]:
    """Write what lies where in a file; returns that file's checksum, and what is written here."""
    index, checksum = _checked(kept, data)
    encoded = json.dumps(encode(index)).encode()
    store.write(key, memoryview(encoded))
    return checksum, _stored(key, len(encoded), checksums.of(encoded))


def _stored(key: str, size: int, checksum: str) -> StoredFile:
    return StoredFile(key, size, {checksums.ALGORITHM: checksum})


def manifest_of(note: Note, attempt: int, data: str, files: Sequence[StoredFile]) -> Manifest:
    """What a worker knows of the checkpoint's manifest: all but the other workers' files."""
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
    """The same, with checksums of each entry: readers check what they read, and read only what they need. And that of
    all the data, which is gone through once.
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
