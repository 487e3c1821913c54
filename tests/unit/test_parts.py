"""A run whose folder somebody removes while a worker commits: what comes there next gets nothing of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters import checkpoints, journal, parts
from airflow_elastic.adapters.folder import FolderStore
from airflow_elastic.adapters.parts import Part, Superseded, tell
from airflow_elastic.adapters.store import Store
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from airflow_elastic.spec.manifest import Manifest
from tests.support.builders import spec

STEP = 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = FolderStore(tmp_path / "run")
    start_run(store, spec())
    return store


def part(store: Store, node: int = 0, of: int = 1) -> Part:
    data = layout.checkpoint_data(STEP, 1, 1)
    return Part(node, of, Manifest(STEP, 1, 1, of, 0.0, data, (), run=journal.identity(store)))


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

    monkeypatch.setattr(parts.checkpoints, "commit", slow)


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


def test_where_nobody_can_say_which_run_is_there_it_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage that fails just then takes nothing away: it is committed, as it says."""
    told = part(store)
    get = store.get

    def away(key: str) -> bytes | None:
        raise StoreError("the storage is away")

    meanwhile(monkeypatch, lambda: None, lambda: monkeypatch.setattr(store, "get", away))
    assert tell(store, told)
    monkeypatch.setattr(store, "get", get)
    assert [one.run for one in checkpoints.readable(store)] == [journal.identity(store)]
