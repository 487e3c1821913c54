"""How a checkpoint comes to be out of what several workers write: each tells its part, and who is last commits."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.reports import newest_fence
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.spec.manifest import Manifest, StoredFile

if TYPE_CHECKING:
    from airflow_elastic.adapters.store import Store


class Superseded(ElasticError):
    """A newer attempt of the run has begun: this one may not write any more."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one worker has written of a checkpoint, and what it knows of it. `of`: how many workers write one."""

    step: int
    attempt: int
    generation: int
    world_size: int
    node: int
    of: int
    files: tuple[StoredFile, ...]
    epoch: int
    offset: int
    samples: int
    reason: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> str:
        """The folder of the checkpoint's files."""
        return layout.checkpoint_data(self.step, self.attempt, self.generation)

    @property
    def key(self) -> str:
        """Where this is told."""
        return f"{self.data}{_NAME}{self.node:04d}.json"


_NAME = "part-"


def tell(store: Store, part: Part, keep_last: int) -> bool:
    """Tell of a part, and make the checkpoint exist if it was the last one; returns whether it exists now.

    Raises:
        Superseded: a newer attempt has begun; nothing was committed.
        StoreError: the storage failed.
    """
    store.put(part.key, json.dumps(encode(part)).encode())
    return commit_if_whole(store, part, keep_last)


def commit_if_whole(store: Store, part: Part, keep_last: int) -> bool:
    """Make the checkpoint exist that this is a part of, if all parts are there, and let old ones go."""
    keys = [entry.key for entry in store.list(f"{part.data}{_NAME}")]
    if len(keys) < part.of:
        return False
    fence = newest_fence(store)
    if fence > part.attempt:
        raise Superseded(f"attempt {fence} has begun: attempt {part.attempt} commits nothing any more")
    told = [store.get(key) for key in keys]
    if None in told:
        return True  # who was last at the same time has committed it, and has removed them
    parts = [decode(Part, json.loads(data)) for data in told if data is not None]
    files = sorted((file for one in parts for file in one.files), key=lambda file: file.key)
    first = min(parts, key=lambda one: one.node)
    manifest = Manifest(
        step=part.step,
        attempt=part.attempt,
        generation=part.generation,
        world_size=part.world_size,
        created_at=time.time(),
        data=part.data,
        files=tuple(files),
        epoch=part.epoch,
        samples=part.samples,
        offset=part.offset,
        metrics=first.metrics,
        reason=part.reason,
        versions=part.versions,
    )
    if checkpoints.commit(store, manifest):
        checkpoints.prune(store, keep_last)
    store.delete(keys)
    return True
