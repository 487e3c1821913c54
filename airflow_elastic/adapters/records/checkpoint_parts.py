"""Several workers write the parts of a checkpoint, and the last one commits it. A fence stops an earlier attempt."""

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
    """A newer attempt of the run has begun, or another run where this one lay: this one may not write any more."""


_NAME = "part-"


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker has written of a checkpoint.

    Attributes:
        node: number of the worker, among those that train.
        of: how many workers write a part.
        manifest: what the checkpoint's will be, with this worker's files alone.
    """

    node: int
    of: int
    manifest: Manifest

    @property
    def key(self) -> str:
        """Where this is told."""
        return f"{self.manifest.data}{_NAME}{self.node:04d}.json"


def check_same_run(store: Store, run: str) -> str:
    """Refuse to write into another run: this one was removed, and one was begun anew in its place.

    Where there is none, the folder may be only out of sight, and nothing is said.

    Args:
        store: where the run lies.
        run: which it was (`journal.identity`) when this worker began; empty where that is not known.

    Returns:
        Which it is.

    Raises:
        Superseded: it is another one.
        StoreError: the storage failed.
    """
    here = journal.identity(store)
    if run and here and here != run:
        raise Superseded(
            f"another run has begun at {store.uri}: nothing of this one is written there any more"
        )
    return here


def check_there(store: Store, run: str) -> str:
    """As `check_same_run`, and that there is one: what is written where a run was removed would be the next one's.

    Raises:
        Superseded: it is another one.
        StoreError: there is none, or the storage failed.
    """
    here = check_same_run(store, run)
    if run and not here:
        raise _missing(store)
    return here


def _missing(store: Store) -> StoreError:
    return StoreError(f"there is no run at {store.uri} any more: it was removed, or is out of sight")


def tell(store: Store, part: Part) -> bool:
    """Tell of a part, and make the checkpoint exist if it was the last one; returns whether this has made it exist.

    Raises:
        Superseded: a newer attempt has begun, or another run; nothing was committed.
        StoreError: the storage failed.
        CheckpointDamaged: something that is no checkpoint of this step stands where its manifest belongs.
    """
    if part.of == 1:
        return _commit(store, [part])
    # Not durable: what is lost with it is a checkpoint that does not exist yet.
    store.put(part.key, json.dumps(encode(part)).encode(), durable=False)
    return _commit_if_whole(store, part)


def _check_fence(store: Store, attempt: int) -> None:
    fence = newest_fence(store)
    if fence > attempt:
        raise Superseded(f"attempt {fence} has begun: attempt {attempt} commits nothing any more")


def _commit_if_whole(store: Store, part: Part) -> bool:
    keys = [replace(part, node=node).key for node in range(part.of)]
    if not {entry.key for entry in store.list(f"{part.manifest.data}{_NAME}")}.issuperset(keys):
        return False
    told = [store.get(key) for key in keys]
    if None in told:
        return False  # who was last at the same time has committed it, and has removed them
    try:
        parts = [decode(Part, json.loads(data)) for data in told if data is not None]
    except (
        ValueError,
        SpecError,
    ) as error:  # whose writer has lost its power: it is told again, or by its buddy
        log.warning(
            "what workers told of %s cannot be read, it is no checkpoint: %s", part.manifest.data, error
        )
        return False
    if [one.key for one in parts] != keys:
        log.warning("of what workers told of %s one is a copy, it is no checkpoint", part.manifest.data)
        return False
    if len({(one.manifest.reason, one.manifest.run) for one in parts}) > 1:
        return False  # a step that was saved more than once, or by workers of two runs: of different states
    committed = _commit(store, parts)
    try:
        store.delete(keys)
    except StoreError as error:  # it exists all the same
        log.warning("what workers told of %s could not be removed: %s", part.manifest.data, error)
    return committed


def _commit(store: Store, parts: list[Part]) -> bool:
    """Make it exist out of all its parts, unless a newer attempt has begun, or another run."""
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
    if not checkpoints.is_complete(
        store, there
    ):  # whoever wrote it was frozen, and its files had been removed
        raise CheckpointDamaged(f"{taken}: files of attempt {there.attempt} are missing")
    return False


def _take_back_unless_there(store: Store, manifest: Manifest) -> None:
    """Remove a manifest whose run was removed while it was made: the run that begins there next would adopt it.

    A folder that is only out of sight for a moment comes back with the checkpoint's files, and keeps it.

    Raises:
        Superseded: another run has begun there already.
        StoreError: there is none.
    """
    try:
        here = journal.identity(store)
        if not manifest.run or here == manifest.run or checkpoints.is_complete(store, manifest):
            return
        with contextlib.suppress(CheckpointDamaged):  # it went with the run
            if checkpoints.read(store, manifest.step).run == manifest.run:
                store.delete([layout.manifest(manifest.step)])
    except StoreError as error:  # who cannot look takes nothing back
        log.warning("whether the run of checkpoint %d is still there is not known: %s", manifest.step, error)
        return
    check_same_run(store, manifest.run)
    raise _missing(store)
