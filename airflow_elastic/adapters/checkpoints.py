"""Checkpoints as the store holds them: manifests, their verification, and what may be removed.

A checkpoint exists when, and only when, its manifest exists. Nothing here opens a checkpoint's files but to compare
sizes and checksums, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters import checksums
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError, SpecError
from airflow_elastic.spec.manifest import MANIFEST_VERSION, Manifest, StoredFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_elastic.adapters.store import Entry, Store


class CheckpointDamaged(ElasticError):
    """A checkpoint whose manifest or files are not what was committed."""


def commit(store: Store, manifest: Manifest) -> bool:
    """Make the checkpoint exist. False: another writer has committed this step before."""
    return store.create(layout.manifest(manifest.step), json.dumps(encode(manifest), indent=1).encode())


def steps(store: Store) -> list[int]:
    """The steps of all committed checkpoints, oldest first."""
    names = (entry.key.removeprefix(layout.MANIFESTS) for entry in store.list(layout.MANIFESTS))
    return sorted(int(name.removesuffix(".json")) for name in names if name.removesuffix(".json").isdigit())


def read(store: Store, step: int) -> Manifest:
    """The manifest of a committed checkpoint.

    Raises:
        CheckpointDamaged: it is missing, cannot be read, or is of a newer version.
    """
    data = store.get(layout.manifest(step))
    where = f"{store.uri}/{layout.manifest(step)}"
    if data is None:
        raise CheckpointDamaged(f"{where} does not exist: step {step} has no committed checkpoint")
    try:
        plain = json.loads(data)
        if plain.get("version") != MANIFEST_VERSION:
            raise ValueError(f"version {plain.get('version')}; this release reads {MANIFEST_VERSION}")
        return decode(Manifest, plain)
    except (ValueError, AttributeError, SpecError) as error:
        raise CheckpointDamaged(f"{where} is no manifest: {error}") from error


def problems(store: Store, manifest: Manifest, *, only: Callable[[int], bool] = lambda _: True) -> list[str]:
    """What is wrong with the files of a checkpoint, one sentence each; empty: every byte is what was committed.

    Args:
        store: where the run lies.
        manifest: what was committed.
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


def quarantine(store: Store, step: int, reason: str) -> None:
    """Set a damaged checkpoint aside: it does not exist any more, and its step can be saved again. Its files stay."""
    manifest = store.get(layout.manifest(step))
    record = {"step": step, "reason": reason, "manifest": (manifest or b"").decode(errors="replace")}
    store.put(layout.quarantined(step), json.dumps(record, indent=1).encode())
    store.delete([layout.manifest(step)])


def quarantined(store: Store) -> dict[int, str]:
    """What is wrong with the checkpoints that were set aside, by step."""
    return {step: str(record.get("reason")) for step, record in _quarantine_records(store)}


def _quarantine_records(store: Store) -> Iterable[tuple[int, dict[str, Any]]]:
    for entry in store.list(layout.QUARANTINE):
        step = entry.key.removeprefix(layout.QUARANTINE).removesuffix(".json")
        with contextlib.suppress(ValueError):
            yield int(step), json.loads(store.get(entry.key) or b"{}")


def _data_of(record: dict[str, Any]) -> str | None:
    """The folder of a quarantined checkpoint's files, where its manifest can be read."""
    try:
        return decode(Manifest, json.loads(record["manifest"])).data
    except (KeyError, ValueError, AttributeError, SpecError):
        return None


def prune(store: Store, keep_last: int) -> list[int]:
    """Remove all but the newest `keep_last` checkpoints; returns the steps removed. Manifests go first.

    Damaged ones that were set aside go when all that are kept are newer.

    Files that belong to no manifest are left: `remove_uncommitted` knows when nobody can be writing them.
    """
    there = steps(store)
    removed = there[:-keep_last] if keep_last > 0 else []
    for step, record in _quarantine_records(store) if removed else ():
        if step < there[len(removed)]:
            files = [entry.key for entry in store.list(data)] if (data := _data_of(record)) else []
            store.delete([*files, layout.quarantined(step)])
    for step in removed:
        try:
            data = read(store, step).data
        except CheckpointDamaged:
            data = None
        store.delete([layout.manifest(step)])
        if data is not None:
            store.delete([entry.key for entry in store.list(data)])
    return removed


def uncommitted(store: Store, before_attempt: int) -> list[Entry]:
    """The files that attempts before this one left without committing them."""
    committed = {manifest.data for manifest in _readable(store)}
    committed.update(data for _, record in _quarantine_records(store) if (data := _data_of(record)))
    stale = []
    for entry in store.list(layout.CHECKPOINT_DATA):
        folder = entry.key.removeprefix(layout.CHECKPOINT_DATA).partition("/")[0]
        attempt = folder.partition("-a")[2].partition("-")[0]
        if (
            f"{layout.CHECKPOINT_DATA}{folder}/" not in committed
            and attempt.isdigit()
            and int(attempt) < before_attempt
        ):
            stale.append(entry)
    return stale


def remove_uncommitted(store: Store, before_attempt: int) -> int:
    """Remove files that attempts before this one left without committing them; returns how many.

    Only for a time when none of those attempts lives.
    """
    stale = uncommitted(store, before_attempt)
    store.delete([entry.key for entry in stale])
    return len(stale)


def _readable(store: Store) -> Iterable[Manifest]:
    for step in steps(store):
        try:
            yield read(store, step)
        except CheckpointDamaged:
            continue
