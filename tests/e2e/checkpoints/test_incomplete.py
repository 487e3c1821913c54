"""A checkpoint that a worker's part is missing of does not exist, whatever lies in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoint_parts import CheckpointPart, tell
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode
from tests.support.runs.rivals import Saving, fill, holds, objects
from tests.support.training.saving import SavingWorker


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_not_all_workers_hold_does_not_exist(ahead: int, tmp_path: Path) -> None:
    """One is ahead when the trainers die: of 8 and 10 in its memory, the other has 8 alone."""
    memory = [(8, 10), (8,)] if ahead == 0 else [(8,), (8, 10)]
    uri, store = str(tmp_path / "run"), open_store(str(tmp_path / "run"))
    raise_fence(store, 1)
    saving = Saving(uri, 1, 0, tmp_path, width=32, keep=5, of=2, memory=memory)
    saving.each_at(*(steps[-1] for steps in memory))
    assert checkpoints.steps(store) == [], "it was for memory alone"
    saving.kill_trainers()
    assert checkpoints.steps(store) == [8]
    manifest = checkpoints.read(store, 8)
    assert (manifest.world_size, checkpoints.problems(store, manifest)) == (2, [])
    left = {entry.key.split("/")[2] for entry in checkpoint_retention.uncommitted(store, 2)}
    assert left == {layout.checkpoint_data(10, 1, 1).split("/")[2]}, (
        "one has written its part, as it could not know"
    )
    assert _restored(store, tmp_path) == 8
    assert checkpoint_retention.uncommitted(store, 2) == []


def _restored(store: Store, folder: Path) -> int:
    """Restore, as the second attempt does; returns the step."""
    loaded, room = objects(32), WorkerCache(folder / "room", 1)
    manifest = Restorer(store, Collectives(0, 1, None), attempt=2, room=room).restore(loaded)
    assert manifest is not None
    assert holds(loaded, manifest.step, manifest.attempt)
    return manifest.step


@pytest.mark.parametrize("of", ["the same step", "another step"])
def test_a_part_that_stands_there_twice_is_one_part(of: str, tmp_path: Path) -> None:
    """A worker that is not there is not made up for by a copy of what another one has told."""
    uri = str(tmp_path / "run")
    first, second = (SavingWorker(uri, index=index, of=2) for index in range(2))
    told = layout.checkpoint_data(8, 1, 1)
    if of == "another step":
        _save(first, 7)
        (copied,) = (key for key in _keys(first.store) if "/part-" in key)
        first.store.put(f"{told}part-0001.json", first.store.get(copied) or b"")
        _save(first, 8)
    else:
        _save(first, 8)
        part = first.store.get(f"{told}part-0000.json") or b""
        for name in ("part-0001.json", "part-0007.json", "part-0000 (copy).json"):
            first.store.put(f"{told}{name}", part)
        assert not tell(first.store, decode(CheckpointPart, json.loads(part)))
    assert checkpoints.steps(first.store) == []
    _save(second, 8)
    assert checkpoints.steps(first.store) == [8]
    assert checkpoints.problems(first.store, checkpoints.read(first.store, 8)) == []
    assert _restored(first.store, tmp_path) == 8


def _save(worker: SavingWorker, step: int) -> None:
    fill(what := objects(32), step, 1)
    worker.save(what, step, Position(0, step, step), reason="script", metrics={})


def _keys(store: Store) -> list[str]:
    return [entry.key for entry in store.list(layout.CHECKPOINT_DATA)]
