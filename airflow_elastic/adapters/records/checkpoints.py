"""Checkpoints in the store: the commit of a manifest, and its verification.

A checkpoint exists when, and only when, its manifest exists. This module reads a checkpoint's files only to compare
sizes and checksums, and unpickles nothing.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_elastic.adapters.records import checksums
from airflow_elastic.adapters.storage.keys import key_problem
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import READABLE_VERSIONS, Manifest, StoredFile
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from airflow_elastic.adapters.storage.store import Store


#: The place of the manifest's own checksum in it.
_SEAL = "seal"

_REQUESTS = 8  # at once

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class CheckpointDamaged(ElasticError):
    """A checkpoint whose manifest or files differ from the committed ones."""


class OtherVersion(CheckpointDamaged):
    """This release cannot read it; another one may."""


def commit(store: Store, manifest: Manifest) -> bool:
    """Commit the checkpoint: it exists from now on. False: another writer has committed this step before."""
    plain = encode(manifest)
    sealed = {**plain, _SEAL: checksum_of(plain)}
    return store.create(layout.manifest(manifest.step), json.dumps(sealed, indent=1).encode())


def checksum_of(plain: Any) -> str:
    """A checksum of a document's plain values, for the document itself: nothing else protects its bytes."""
    return checksums.of(json.dumps(plain).encode())


def steps(store: Store) -> list[int]:
    """The steps of all committed checkpoints, oldest first."""
    return steps_below(store, layout.MANIFESTS)


def steps_below(store: Store, prefix: str) -> list[int]:
    """The steps in the names of objects below a prefix, oldest first."""
    names = (entry.key.removeprefix(prefix).removesuffix(".json") for entry in store.list(prefix))
    return sorted(int(name) for name in names if name.isdigit())


def read(store: Store, step: int) -> Manifest:
    """The manifest of a committed checkpoint.

    Raises:
        CheckpointDamaged: it is missing, cannot be read, is of a newer version, or of another step.
    """
    data = store.get(layout.manifest(step))
    where = f"{store.uri}/{layout.manifest(step)}"
    if data is None:
        raise CheckpointDamaged(f"{where} does not exist: step {step} has no committed checkpoint")
    try:
        manifest = parse_manifest(data)
    except CheckpointDamaged as error:
        raise type(error)(f"{where} is no manifest: {error}") from error
    check_place(manifest, step, where)
    return manifest


def check_place(manifest: Manifest, step: int, where: str) -> None:
    """Refuse a valid manifest that was copied to another name.

    Raises:
        CheckpointDamaged: it is of another step, or names files outside of its own folder.
    """
    if manifest.step != step:
        raise CheckpointDamaged(f"{where} is a copy of the manifest of step {manifest.step}")
    ours = layout.checkpoint_data(step, manifest.attempt, manifest.generation).rstrip("/")
    if not re.fullmatch(re.escape(ours) + f"({layout.RECOVERED})?/", manifest.data):
        raise CheckpointDamaged(
            f"{where} names the folder {manifest.data!r}, which is not a folder of its step"
        )
    for file in manifest.files:
        if not file.key.startswith(manifest.data) or key_problem(file.key):
            raise CheckpointDamaged(f"{where} names {file.key!r}, which is outside of {manifest.data}")


def parse_manifest(data: bytes) -> Manifest:
    """A manifest from its bytes. Raises CheckpointDamaged if they are invalid, or have changed since the commit."""
    try:
        plain = json.loads(data)
        version, seal = plain.get("version"), plain.pop(_SEAL, None)
        is_others = isinstance(version, int) and version not in READABLE_VERSIONS
        # The seal comes first: if the version has changed, the rest means nothing. Some other releases write no seal.
        if seal != checksum_of(plain) and not (is_others and seal is None):
            raise ValueError("its bytes have changed")
        if is_others:
            raise OtherVersion(
                f"version {version}; this release reads {', '.join(map(str, READABLE_VERSIONS))}"
            )
        return decode(Manifest, plain)
    except (ValueError, AttributeError, SpecError, RecursionError) as error:
        raise CheckpointDamaged(str(error)) from error


def problems(store: Store, manifest: Manifest, *, only: Callable[[int], bool] = lambda _: True) -> list[str]:
    """What is wrong with the files of a checkpoint, one sentence each; empty: every byte is as committed.

    Args:
        store: where the run is stored.
        manifest: the committed manifest.
        only: which files to look at, by index: ranks share the reading.
    """
    return [p for i, file in enumerate(manifest.files) if only(i) for p in _file_problems(store, file)]


def _file_problems(store: Store, file: StoredFile) -> Iterable[str]:
    digests = {name: digest for name in file.checksums if (digest := checksums.new(name)) is not None}
    size = 0
    while chunk := store.read_from(file.key, size, 8 << 20):
        size += len(chunk)
        for digest in digests.values():
            digest.update(chunk)
    if size != file.size:
        missing = "is missing" if size == 0 else f"has {size} bytes instead of {file.size}"
        yield f"{file.key} {missing}"
        return
    if not digests:
        yield f"{file.key} has no checksum that can be checked here ({', '.join(file.checksums) or 'none at all'})"
    for name, digest in digests.items():
        if digest.hexdigest() != file.checksums[name]:
            yield f"{file.key} has another {name} than was committed: its bytes have changed"


def readable(store: Store, of: Sequence[int] | None = None) -> list[Manifest]:
    """The manifests of these steps that can be read, in their order. Default: all there are, oldest first."""

    def one(step: int) -> Manifest | None:
        try:
            return read(store, step)
        except CheckpointDamaged:
            return None

    return [manifest for manifest in at_once(one, steps(store) if of is None else of) if manifest is not None]


def at_once(request: Callable[[_Asked], _Answer], all_: Sequence[_Asked]) -> list[_Answer]:
    """The answers to several requests, made at the same time; a single request needs no thread."""
    if len(all_) <= 1:
        return [request(one) for one in all_]
    with ThreadPoolExecutor(min(_REQUESTS, len(all_))) as pool:
        return list(pool.map(request, all_))


def is_complete(store: Store, manifest: Manifest) -> bool:
    """Whether all its files are there, by their sizes alone: `problems` compares the bytes."""
    sizes = {entry.key: entry.size for entry in store.list(manifest.data)}
    return all(sizes.get(file.key) == file.size for file in manifest.files)
