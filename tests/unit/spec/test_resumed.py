"""What a script is told of the checkpoint that it is going to restore, and what that binds the run to."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import Manifest
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.checkpoints.resumed import Resumed, resumed_from
from tests.support.training.saving import objects, restorer, same, save


def damage(uri: Path, step: int) -> None:
    store = open_store(str(uri))
    file = max(checkpoints.read(store, step).files, key=lambda one: one.size)
    path = uri / file.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_nothing_where_the_run_begins(tmp_path: Path) -> None:
    one = restorer(tmp_path / "run")
    one.look()
    assert one.resumed is None
    assert one.restore(objects(1)) is None


def test_the_facts_of_the_newest_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(run, 3, objects(1))
    save(run, 5, objects(2))
    one = restorer(run)
    one.look()
    found = one.resumed
    assert found is not None
    assert (found.step, found.epoch, found.offset, found.samples) == (5, 1, 10, 50)
    assert (found.metrics, found.attempt, found.world_size) == ({"loss": 0.5}, 1, 1)
    manifest = one.restore(objects(3))
    assert manifest is not None
    assert manifest.step == found.step == one.resumed.step  # type: ignore[union-attr]


def test_who_was_told_of_a_checkpoint_that_is_damaged_begins_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(run, 3, older := objects(1))
    save(run, 5, objects(2))
    damage(run, 5)
    one = restorer(run)
    one.look()
    assert one.resumed is not None
    with pytest.raises(SystemExit) as ended:
        one.restore(objects(3))
    assert ended.value.code == 138
    assert list(checkpoint_retention.quarantined(open_store(str(run)))) == [5]
    again = restorer(run, attempt=3)
    again.look()
    assert again.resumed is not None
    assert again.resumed.step == 3
    loaded = objects(4)
    assert again.restore(loaded) is not None
    assert same(loaded, older)


def test_who_was_not_told_goes_on_from_the_one_before(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(run, 3, older := objects(1))
    save(run, 5, objects(2))
    damage(run, 5)
    one = restorer(run)
    one.look()
    loaded = objects(4)
    manifest = one.restore(loaded)
    assert manifest is not None
    assert manifest.step == 3
    assert same(loaded, older)


def test_what_cannot_even_be_opened_is_not_told_of(tmp_path: Path) -> None:
    run = tmp_path / "run"
    save(run, 3, objects(1))
    save(run, 5, objects(2))
    (run / layout.manifest(5)).write_bytes(b"{}")
    one = restorer(run)
    one.look()
    assert one.resumed is not None
    assert one.resumed.step == 3
    manifest = one.restore(objects(4))
    assert manifest is not None
    assert manifest.step == 3


def test_phases_that_are_complete_are_behind() -> None:
    manifest = Manifest(7, 1, 1, 2, 0.0, "", (), epoch=2, offset=8, samples=70)
    assert resumed_from(manifest).phase_steps == 7
    first = PhaseRecord("pretrain", 0, 5, complete=True, results={"loss": 0.5})
    within = Manifest(
        7, 1, 1, 2, 0.0, "", (), epoch=2, offset=8, samples=70, phases=(first, PhaseRecord("tune", 5, 2))
    )
    found = resumed_from(within)
    assert (found.phase, found.phase_name, found.phase_steps, found.epoch) == (1, "tune", 2, 2)
    assert found.results == {"pretrain": {"loss": 0.5}}
    between = Manifest(5, 1, 1, 2, 0.0, "", (), epoch=2, offset=8, samples=70, phases=(first,))
    expected = Resumed(
        5, 0, 0, 70, phase=1, results={"pretrain": {"loss": 0.5}}, world_size=2, saved_at=0.0, attempt=1
    )
    assert resumed_from(between) == expected
