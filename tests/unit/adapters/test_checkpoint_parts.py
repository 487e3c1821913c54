"""A run whose folder somebody removes while a worker commits: what comes there next gets nothing of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_parts, checkpoints, journal
from airflow_elastic.adapters.records.checkpoint_parts import CheckpointPart, Superseded, tell
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest, StoredFile
from airflow_elastic.spec.errors import StoreError
from tests.support.builders import spec

STEP = 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = FolderStore(tmp_path / "run")
    start_run(store, spec())
    return store


def part(store: Store, node: int = 0, of: int = 1) -> CheckpointPart:
    """What a worker tells of, and its one file."""
    data = layout.checkpoint_data(STEP, 1, 1)
    file = StoredFile(f"{data}rank-{node}", 3, {})
    store.put(file.key, b"abc")
    return CheckpointPart(node, of, Manifest(STEP, 1, 1, of, 0.0, data, (file,), run=journal.identity(store)))


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[], object], after: Callable[[], object] = lambda: None
) -> None:
    """Have something happen just before the manifest is made, and just after."""
    commit = checkpoints.commit

    def slow(store: Store, manifest: Manifest) -> bool:
        before()
        made = commit(store, manifest)
        after()
        return made

    monkeypatch.setattr(checkpoint_parts.checkpoints, "commit", slow)


def cannot_be_read(monkeypatch: pytest.MonkeyPatch, store: Store, answer: Exception | None) -> None:
    """From now on nothing of the run's journal is seen, or there is no answer."""
    get = store.get

    def away(key: str) -> bytes | None:
        if not key.startswith(layout.JOURNAL):
            return get(key)
        if answer is not None:
            raise answer
        return None

    monkeypatch.setattr(store, "get", away)


@pytest.mark.parametrize("workers", [1, 2])
def test_where_its_run_was_removed_no_checkpoint_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """It would be the only one of the run that begins there next, without a file."""
    told = [part(store, node, workers) for node in range(workers)]
    for one in told[:-1]:
        assert not tell(store, one)
    meanwhile(monkeypatch, lambda: shutil.rmtree(store.uri))
    with pytest.raises(StoreError, match=r"there is no run at .* any more"):
        tell(store, told[-1])
    assert checkpoints.steps(store) == []


def test_where_another_run_has_begun_no_checkpoint_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = part(store)

    def replaced() -> None:
        shutil.rmtree(store.uri)
        start_run(store, spec())

    meanwhile(monkeypatch, replaced)
    with pytest.raises(Superseded, match="another run has begun"):
        tell(store, told)
    assert checkpoints.steps(store) == []


def test_what_the_other_run_has_committed_meanwhile_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, commit = part(store), checkpoints.commit

    def replaced() -> None:
        shutil.rmtree(store.uri)
        start_run(store, spec())
        commit(store, replace(told.manifest, run=journal.identity(store)))

    meanwhile(monkeypatch, lambda: None, replaced)
    with pytest.raises(Superseded):
        tell(store, told)
    assert checkpoints.steps(store) == [STEP]


@pytest.mark.parametrize("answer", [None, StoreError("the storage is away")], ids=["unseen", "away"])
def test_where_the_run_is_only_out_of_sight_it_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, answer: Exception | None
) -> None:
    """Its files are there, or nobody can say: nothing is taken away."""
    told = part(store)
    meanwhile(monkeypatch, lambda: None, lambda: cannot_be_read(monkeypatch, store, answer))
    assert tell(store, told)
    assert checkpoints.is_complete(store, checkpoints.read(store, STEP))


def test_what_is_of_no_known_run_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told = part(store)
    with monkeypatch.context() as unseen:
        cannot_be_read(unseen, store, None)
        meanwhile(monkeypatch, lambda: None, unseen.undo)
        assert tell(store, replace(told, manifest=replace(told.manifest, run="")))
    assert [one.run for one in checkpoints.readable(store)] == [""]
