"""Runs with checkpoints that can be promoted, without torch: their weights are a few bytes of their step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile


def saved(run: Store, step: int, **metrics: float) -> Manifest:
    """Commit a checkpoint of a step with these metrics."""
    data = layout.checkpoint_data(step, 1, 1)
    content = f"weights of step {step}".encode()
    run.put(f"{data}rank-00000.bin", content)
    file = StoredFile(f"{data}rank-00000.bin", len(content), {})
    manifest = Manifest(step, 1, 1, 1, time.time(), data, (file,), metrics=metrics)
    assert checkpoints.commit(run, manifest)
    return manifest


def a_run(folder: Path, metrics: Mapping[int, Mapping[str, float]]) -> Store:
    """A run with these metrics at these steps."""
    run = open_store(str(folder))
    for step, told in metrics.items():
        saved(run, step, **told)
    return run


def exported(run: Store, step: int, path: Path) -> None:
    """Write the weights of a checkpoint into a file."""
    path.write_bytes(run.get(f"{checkpoints.read(run, step).data}rank-00000.bin") or b"")


class Watched:
    """A store that calls a function before and after each of its writes.

    Args:
        store: the real one.
        told: called with the number of the moment: 0 before the first write, 1 after it, 2 before the next one.
    """

    WRITES = ("put", "write", "create", "upload", "delete")

    def __init__(self, store: Store, told: Callable[[int], None], moments: list[int]) -> None:
        self._store, self._told, self._moments = store, told, moments

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self.WRITES:
            return found

        def write(*arguments: Any, **options: Any) -> Any:
            self._moment()
            answer = found(*arguments, **options)
            self._moment()
            return answer

        return write

    def _moment(self) -> None:
        now = self._moments[0]
        self._moments[0] += 1
        self._told(now)


def keys(store: Store) -> list[str]:
    """The keys of all objects."""
    return [entry.key for entry in store.list()]


def content(store: Store) -> dict[str, bytes]:
    """All objects."""
    return {key: store.get(key) or b"" for key in keys(store)}


def restore(store: Store, objects: Mapping[str, bytes]) -> None:
    """Make these all objects there are."""
    store.delete([key for key in keys(store) if key not in objects])
    for key, data in objects.items():
        if store.get(key) != data:
            store.put(key, data)
