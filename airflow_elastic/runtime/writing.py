"""The files of a checkpoint that one worker writes: what its ranks have staged, and what lies where in it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters import checksums
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.index import Blob, Index, Piece, blocks
from airflow_elastic.spec.manifest import Manifest, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_elastic.adapters.store import Store
    from airflow_elastic.runtime.slots import Note, Slot


def write_files(
    store: Store,
    held: Sequence[tuple[Slot, Note]],
    folder: str,
    attempt: int,
    moved: Callable[[], None] = lambda: None,
) -> tuple[list[StoredFile], list[StoredFile]]:
    """Write what the ranks of a worker have staged, two files each, and accounts of their samples.

    Args:
        store: where to.
        held: slots, held for reading, with what they hold.
        folder: of the checkpoint's data.
        attempt: number of theirs.
        moved: called after each file.

    Returns:
        The files of the checkpoint, and the accounts.

    Raises:
        StoreError: the storage failed. Files may be there that nobody knows of.
    """
    files: list[StoredFile] = []
    accounts: list[StoredFile] = []
    for slot, note in held:
        (data, index_of), memory = file_keys(folder, note.rank), slot.data(note.kept_bytes)
        with ThreadPoolExecutor(1) as beside:
            index = beside.submit(_checked, note.kept, memory)
            files.append(_write(store, data, memory))
        moved()
        if note.account is not None:  # before anything that it accounts for can count
            key = layout.account(attempt, note.generation, note.step, note.rank)
            told = json.dumps(encode(note.account)).encode()
            store.put(key, told)
            accounts.append(_stored(key, len(told), checksums.of(told)))
        encoded = json.dumps(encode(index.result())).encode()
        files.append(_write(store, index_of, memoryview(encoded)))
        moved()
    return files, accounts


def file_keys(folder: str, rank: int) -> tuple[str, str]:
    """The files of one rank below a checkpoint's folder: its data, and what lies where in it."""
    return f"{folder}rank-{rank:05d}.bin", f"{folder}rank-{rank:05d}.json"


def _write(store: Store, key: str, data: memoryview) -> StoredFile:
    """Write a file, and take its checksum meanwhile."""
    with ThreadPoolExecutor(1) as beside:
        checksum = beside.submit(checksums.of, data)
        store.write(key, data)
        return _stored(key, len(data), checksum.result())


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
    )


def _checked(index: Index, data: memoryview) -> Index:
    """The same, with checksums of each entry: readers check what they read, and read only what they need."""

    def of(entry: Piece | Blob) -> tuple[str, ...]:
        return tuple(checksums.of(data[entry.at + a : entry.at + b]) for a, b in blocks(entry.size))

    return Index(
        tuple(replace(piece, checksums=of(piece)) for piece in index.pieces),
        tuple(replace(blob, checksums=of(blob)) for blob in index.blobs),
    )
