"""What is damaged, a copy, or another run's is left aside, and the newest that is whole is loaded."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.mailbox import CheckpointTrouble, Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.poll import events_of
from airflow_elastic.control.runs import start_run
from airflow_elastic.runtime.checkpoint.read.load import ProgressCallback, StateLoader
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.spec.run import RunSpec
from tests.support.training.saving import SavingWorker, objects, restorer, same, save, spoil


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "extend", "manifest", "deep manifest"])
def test_a_damaged_newest_one_is_left_aside(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = objects(1)
    save(tmp_path, 5, good)
    save(tmp_path, 9, objects(2))
    spoil(tmp_path, 9, damage)
    loaded = objects(3)
    with caplog.at_level(logging.WARNING):
        manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert manifest.step == 5
    assert same(good, loaded)
    assert "trying the one before it" in caplog.text


def test_a_damaged_one_is_set_aside_and_its_step_can_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    spoil(tmp_path, 9, "flip")
    restorer(tmp_path, attempt=2).restore(objects(3))
    store = open_store(str(tmp_path))
    assert (checkpoints.steps(store), list(checkpoint_retention.quarantined(store))) == ([5], [9])
    news, again = Mailbox(store).read()
    assert again.checkpoint == news.checkpoint, "nor does a controller that looks in between miss it"
    assert (news.kind, news.checkpoint) == (
        "damaged",
        CheckpointTrouble(2, 9, checkpoint_retention.quarantined(store)[9], newest=5),
    )
    assert "its bytes have changed" in checkpoint_retention.quarantined(store)[9]

    save(tmp_path, 9, good := objects(4), attempt=2)
    loaded = objects(5)
    restored = restorer(tmp_path, attempt=3).restore(loaded)
    assert restored is not None
    assert restored.step == 9
    assert same(good, loaded)
    damaged = layout.checkpoint_data(9, 1, 1)
    assert store.list(damaged), "what is damaged is kept for whoever wants to know why"
    for step in (12, 15, 18):
        save(tmp_path, step, objects(6), attempt=3)
    assert (checkpoint_retention.quarantined(store), store.list(damaged)) == ({}, []), "it is kept for ever"


def test_of_a_damaged_one_that_file_is_read_again_which_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All other ranks wait meanwhile, and a checkpoint may be large."""
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    spoil(tmp_path, 9, "flip")
    looked: list[str] = []
    problems = checkpoints.problems

    def seen(store: Store, manifest: Manifest, *, only: Callable[[int], bool]) -> list[str]:
        looked.extend(file.key for at, file in enumerate(manifest.files) if only(at))
        return problems(store, manifest, only=only)

    monkeypatch.setattr(checkpoints, "problems", seen)
    restorer(tmp_path, attempt=2).restore(objects(3))
    store = open_store(str(tmp_path))
    assert list(checkpoint_retention.quarantined(store)) == [9]
    (key,) = looked
    assert key in checkpoint_retention.quarantined(store)[9]


def test_what_only_one_machine_cannot_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    read = StateLoader.read

    def bad_memory(self: StateLoader, store: Store, told: ProgressCallback, processors: int) -> None:
        read(self, store, told, processors)
        if self.manifest.step == 9:
            raise CheckpointDamaged("a bit has flipped")

    monkeypatch.setattr(StateLoader, "read", bad_memory)
    manifest = restorer(tmp_path, attempt=2).restore(objects(3))
    assert manifest is not None
    assert manifest.step == 5
    store = open_store(str(tmp_path))
    assert (checkpoints.steps(store), checkpoint_retention.quarantined(store)) == ([5, 9], {})
    (news,) = Mailbox(store).read()
    why = "a bit has flipped. In storage it is whole, and stays"
    assert list(events_of(news, 1.0)) == [ev.CopyRefused(1.0, 2, 9, "node-0", why, newest=5)]


def test_where_all_are_damaged_it_does_not_begin_anew_silently(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    spoil(tmp_path, 5, "flip")
    with pytest.raises(CheckpointDamaged, match=r"none of the checkpoints \[5\] .* is whole"):
        restorer(tmp_path, attempt=2).restore(objects(2))


def test_a_copied_manifest_is_no_checkpoint_of_that_step(tmp_path: Path) -> None:
    """Whole in itself, and yet the run would silently go back to where it had been long ago."""
    good = objects(1)
    save(tmp_path, 5, objects(2))
    save(tmp_path, 9, good)
    copied = (tmp_path / layout.manifest(5)).read_bytes()
    (tmp_path / layout.manifest(12)).write_bytes(copied)
    with pytest.raises(
        CheckpointDamaged, match=r"name of step 12 is taken.* is a copy of the manifest of step 5"
    ):
        save(tmp_path, 12, objects(3))
    loaded = objects(4)
    manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert manifest.step == 9
    assert same(good, loaded)
    assert list(checkpoint_retention.quarantined(open_store(str(tmp_path)))) == [12]
    save(tmp_path, 12, objects(5), attempt=2)
    restored = restorer(tmp_path, attempt=3).restore(objects(6))
    assert restored is not None
    assert restored.step == 12


def test_one_of_another_run_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    def begin(name: str) -> Path:
        start_run(open_store(str(tmp_path / name)), RunSpec(("train.py",)))
        return tmp_path / name

    def files(run: Path) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    ours, theirs = begin("ours"), begin("theirs")
    save(ours, 5, good := objects(1))
    save(theirs, 9, objects(2))
    shutil.copytree(theirs / "checkpoints", ours / "checkpoints", dirs_exist_ok=True)
    before = files(ours)
    with pytest.raises(InvalidInput, match=r"checkpoint 9 in .* is of another run .* copied there after"):
        restorer(ours, attempt=2).restore(untouched := objects(3))
    assert same(untouched, objects(3))
    assert files(ours) == before

    # Nor does it push this run's own away.
    store = open_store(str(ours))
    assert checkpoint_retention.prune(store, CheckpointPolicy(keep_last=1)) == []
    (ours / layout.manifest(9)).unlink()
    loaded = objects(4)
    assert restorer(ours, attempt=2).restore(loaded) is not None
    assert same(good, loaded)

    # What lies there when a run begins was put there for it to go on from.
    again = tmp_path / "again"
    shutil.copytree(ours / "checkpoints", again / "checkpoints")
    begin("again")
    assert restorer(again).restore(loaded) is not None
    save(again, 12, objects(5))
    assert checkpoint_retention.prune(open_store(str(again)), CheckpointPolicy(keep_last=1)) == [5]


def test_a_part_that_is_a_copy_does_not_make_a_checkpoint(tmp_path: Path) -> None:
    """Of two workers one has written its part, and somebody has copied what it told."""
    first, second = (SavingWorker(str(tmp_path), index=index, of=2) for index in (0, 1))
    first.save(objects(1), 3, Position(), reason="script", metrics={})
    (told,) = tmp_path.glob("checkpoints/data/*/part-*.json")
    for name in ("part-0000 (copy).json", "part-0001.json", "part-0002.json"):
        shutil.copy(told, told.with_name(name))
    first.persister.flush()
    assert checkpoints.steps(first.store) == []
    first.saver.save(objects(1), 4, Position(), reason="script", metrics={})
    first.persister.flush()
    second.save(objects(1), 4, Position(), reason="script", metrics={})
    assert checkpoints.steps(first.store) == [4]
