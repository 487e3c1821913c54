"""Workers write the parts of a checkpoint, and the last one commits it. A fence stops earlier attempts."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import checkpoints, journal
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.reports import newest_fence
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError, SpecError, StoreError

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


log = logging.getLogger(__name__)


class Superseded(ElasticError):
    """A newer attempt has begun, or another run at the same place: this one must not write any more."""


_NAME = "part-"


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """The part of a checkpoint that one worker has written.

    Attributes:
        node: number of the worker, among those that train.
        of: how many workers write a part.
        manifest: the manifest of the checkpoint, but with this worker's files only.
    """

    node: int
    of: int
    manifest: Manifest

    @property
    def key(self) -> str:
        """Key of the record of this part."""
        return f"{self.manifest.data}{_NAME}{self.node:04d}.json"


def check_same_run(store: Store, run: str) -> str:
    """Refuse to write if this run was removed and another one was begun in its place.

    If there is no run, the folder may only be out of sight, so that is no error.

    Args:
        store: where the run is stored.
        run: the identity of the run (`journal.identity`) when this worker began; empty if unknown.

    Returns:
        The identity of the run that is there.

    Raises:
        Superseded: another run is there.
        StoreError: the storage failed.
    """
    here = journal.identity(store)
    if run and here and here != run:
        raise Superseded(f"another run has begun at {store.uri}: this one must not write there any more")
    return here


def check_there(store: Store, run: str) -> str:
    """Like `check_same_run`, but a run must be there. Files written after a removal would belong to the next run.

    Raises:
        Superseded: another run is there.
        StoreError: there is none, or the storage failed.
    """
    here = check_same_run(store, run)
    if run and not here:
        raise _missing(store)
    return here


def _missing(store: Store) -> StoreError:
    return StoreError(f"there is no run at {store.uri} any more: it was removed, or is out of sight")


def tell(store: Store, part: CheckpointPart) -> bool:
    """Record a part, and commit the checkpoint if it was the last one; returns whether this call has committed it.

    Raises:
        Superseded: a newer attempt has begun, or another run; nothing was committed.
        StoreError: the storage failed.
        CheckpointDamaged: the key of its manifest holds something that is no checkpoint of this step.
    """
    if part.of == 1:
        return _commit(store, [part])
    # Not durable: a power loss only loses a checkpoint that is not committed yet.
    store.put(part.key, json.dumps(encode(part)).encode(), durable=False)
    return _commit_if_whole(store, part)


def _check_fence(store: Store, attempt: int) -> None:
    fence = newest_fence(store)
    if fence > attempt:
        raise Superseded(f"attempt {fence} has begun: attempt {attempt} commits nothing any more")


def _commit_if_whole(store: Store, part: CheckpointPart) -> bool:
    keys = [replace(part, node=node).key for node in range(part.of)]
    if not {entry.key for entry in store.list(f"{part.manifest.data}{_NAME}")}.issuperset(keys):
        return False
    told = [store.get(key) for key in keys]
    if None in told:
        return False  # another worker was last at the same time: it has committed and has removed the records
    try:
        parts = [decode(CheckpointPart, json.loads(data)) for data in told if data is not None]
    except (ValueError, SpecError) as error:  # after a power loss: the writer or its buddy records it again
        log.warning(
            "records of the parts of %s cannot be read, it is no checkpoint: %s", part.manifest.data, error
        )
        return False
    if [one.key for one in parts] != keys:
        log.warning("a record of the parts of %s is a copy, it is no checkpoint", part.manifest.data)
        return False
    if len({(one.manifest.reason, one.manifest.run) for one in parts}) > 1:
        return False  # a step that was saved more than once, or by workers of two runs: the states differ
    committed = _commit(store, parts)
    try:
        store.delete(keys)
    except StoreError as error:  # the checkpoint exists all the same
        log.warning("records of the parts of %s could not be removed: %s", part.manifest.data, error)
    return committed


def _commit(store: Store, parts: list[CheckpointPart]) -> bool:
    """Commit the checkpoint from all its parts, unless a newer attempt or another run has begun."""
    files = sorted((file for one in parts for file in one.manifest.files), key=lambda file: file.key)
    first = min(parts, key=lambda one: one.node)
    manifest = replace(
        first.manifest,
        files=tuple(files),
        created_at=time.time(),
        journal=journal.newest(store),
        run=check_there(store, first.manifest.run),
    )
    _check_fence(store, manifest.attempt)
    if checkpoints.commit(store, manifest):
        _take_back_unless_there(store, manifest)
        return True
    taken = f"the name of step {manifest.step} is taken, and nothing may replace what has it"
    try:
        there = checkpoints.read(store, manifest.step)
    except CheckpointDamaged as error:
        raise CheckpointDamaged(f"{taken}: {error}") from error
    if not checkpoints.is_complete(store, there):  # its writer was frozen, and its files have been removed
        raise CheckpointDamaged(f"{taken}: files of attempt {there.attempt} are missing")
    return False


def _take_back_unless_there(store: Store, manifest: Manifest) -> None:
    """Remove a manifest whose run was removed while it was made, because the next run there would adopt it.

    A folder that was only out of sight comes back with the checkpoint's files, and the manifest stays.

    Raises:
        Superseded: another run has already begun there.
        StoreError: there is no run.
    """
    try:
        here = journal.identity(store)
        if not manifest.run or here == manifest.run or checkpoints.is_complete(store, manifest):
            return
        with contextlib.suppress(CheckpointDamaged):  # it was removed with the run
            if checkpoints.read(store, manifest.step).run == manifest.run:
                store.delete([layout.manifest(manifest.step)])
    except StoreError as error:  # without a look nothing is removed
        log.warning("whether the run of checkpoint %d is still there is not known: %s", manifest.step, error)
        return
    check_same_run(store, manifest.run)
    raise _missing(store)
