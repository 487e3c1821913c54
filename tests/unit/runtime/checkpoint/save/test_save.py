"""A checkpoint exists when its manifest does."""

from __future__ import annotations

import gc
import logging
import platform
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.main import cli
from airflow_elastic.control.poll import events_of
from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.machine import replay
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.tiers.storage.uncommitted import UncommittedSaves, WrittenSave
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.manifest import MANIFEST_VERSION
from airflow_elastic.spec.errors import StoreError, StoreFull
from tests.support.builders import created
from tests.support.training.forging import of_release
from tests.support.training.saving import SavingWorker, objects, restorer, same, save


def test_what_is_saved_is_what_is_restored(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    torch.manual_seed(5)
    save(tmp_path, 7, saved)
    expected = torch.rand(3)
    manifest = restorer(tmp_path, attempt=2).restore(loaded)
    assert manifest is not None
    assert (manifest.step, manifest.epoch, manifest.offset, manifest.samples) == (7, 1, 10, 70)
    assert same(saved, loaded)
    assert torch.equal(torch.rand(3), expected), "the generators do not go on from where they were"


class _Asked:
    """Notes whether Python looks for garbage while a state is asked for."""

    def __init__(self) -> None:
        self.looked: list[bool] = []

    def state_dict(self) -> dict[str, Any]:
        self.looked.append(gc.isenabled())
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("looks", [True, False])
def test_no_garbage_is_looked_for_while_a_state_is_laid_out(
    looks: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(gc.enable)
    saved, asked = objects(1), _Asked()
    if not looks:  # a script that does so itself when it has time
        gc.disable()
    save(tmp_path, 5, replace(saved, others={"asked": asked}))
    assert asked.looked
    assert not any(asked.looked)
    assert gc.isenabled() is looks


def test_a_manifest_says_what_wrote_it(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    versions = checkpoints.read(open_store(str(tmp_path)), 5).versions
    assert versions["torch"] == torch.__version__
    assert versions["python"] == platform.python_version()
    assert versions.keys() >= {"airflow_elastic", "numpy"}


def test_where_there_is_no_room_to_note_what_was_verified_old_ones_go_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1)

    def full(*_: object, **__: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(checkpoint_retention, "note_verified", full)
    monkeypatch.setattr(worker.node, "verified", lambda: (1, 2.0))
    for step in (1, 2, 3):
        worker.save(objects(1), step, Position(), reason="steps", metrics={})
    assert checkpoints.steps(worker.store) == [1, 3]


def test_a_manifest_says_how_far_the_journal_was(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    store = open_store(str(tmp_path))
    journal = Journal(store)
    for seq in range(12):
        assert journal.append(seq, ev.StopRequested(1.0, "save", "somebody"))
    save(tmp_path, 9, objects(1))
    assert [checkpoints.read(store, step).journal for step in (5, 9)] == [-1, 11]


def test_one_process_alone_is_not_warned_of(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path, 7, objects(1))
        assert restorer(tmp_path, attempt=2).restore(objects(2)) is not None


def test_old_checkpoints_that_stay_cost_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SavingWorker(str(tmp_path), keep_last=1)

    def refuse(keys: object) -> None:
        raise StoreError("you may not delete")

    for step in (5, 9):
        worker.save(objects(1), step, Position(), reason="steps", metrics={})
        if step == 5:
            monkeypatch.setattr(worker.store, "delete", refuse)
    assert checkpoints.steps(worker.store) == [5, 9]


def test_a_manifest_that_cannot_be_read_costs_no_files(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    path = tmp_path / layout.manifest(9)
    path.write_bytes(of_release(path.read_bytes(), MANIFEST_VERSION + 1))
    store = open_store(str(tmp_path))
    assert checkpoint_retention.uncommitted(store, 2) == []
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert checkpoint_retention.uncommitted(store, 3) == []
    assert store.list(layout.checkpoint_data(9, 1, 1))
    assert checkpoint_retention.quarantined(store) == {}, "another release may read it"


@pytest.mark.parametrize("bad", ['"versiom": 4', '"version": 2', '"version": 7', '"version": "4"'])
def test_a_version_that_has_changed_is_no_other_release(bad: str, tmp_path: Path) -> None:
    """Else it would stand in the way of its own step for ever."""
    save(tmp_path, 5, objects(1))
    save(tmp_path, 9, objects(2))
    path = tmp_path / layout.manifest(9)
    path.write_text(path.read_text().replace('"version": 4', bad))
    assert restorer(tmp_path, attempt=2).restore(objects(3)) is not None
    assert checkpoints.steps(store := open_store(str(tmp_path))) == [5]
    assert list(checkpoint_retention.quarantined(store)) == [9]


def test_a_commit_whose_answer_was_lost_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, commit = SavingWorker(str(tmp_path)), checkpoints.commit

    def lost(*what: Any) -> bool:
        assert commit(*what)
        raise StoreError("no answer")

    def full(*what: Any, **how: Any) -> None:
        raise StoreError("the disk is full")

    worker.saver.save(objects(1), 8, Position(), reason="steps", metrics={})
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "commit", lost)
        with pytest.raises(StoreError, match="no answer"):
            worker.persister.flush()
    with monkeypatch.context() as patched:
        patched.setattr(type(worker.store), "write", full)
        worker.persister.flush()  # it need not be written again
    assert checkpoints.problems(worker.store, checkpoints.read(worker.store, 8)) == []


def test_files_that_others_may_know_of_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (SavingWorker(str(tmp_path), index=index, of=2) for index in range(2))
    for worker in (one, other):
        worker.saver.save(objects(1), 8, Position(), reason="steps", metrics={})

    def fails(*what: Any, **how: Any) -> None:
        raise StoreError("not now")

    for broken in ("list", "write"):  # its word was put; and then it tries again
        with monkeypatch.context() as patched:
            patched.setattr(type(one.store), broken, fails)
            with pytest.raises(StoreError, match="not now"):
                one.persister.flush()
    other.persister.flush()
    assert checkpoints.problems(other.store, checkpoints.read(other.store, 8)) == []


def test_what_others_could_not_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (SavingWorker(str(tmp_path), index=index, of=2) for index in range(2))
    for step in range(1, 9):
        one.saver.save(objects(1), step, Position(), reason="steps", metrics={})
        one.persister.write_new()
    there = {entry.key.split("/")[2] for entry in one.store.list(layout.CHECKPOINT_DATA)}
    assert len(there) == 3, "those that the other one may still complete"
    for step in (9, 10, 11, 12):
        for worker in (one, other):
            worker.saver.save(objects(1), step, Position(), reason="steps", metrics={})
            worker.persister.write_new()
    assert checkpoints.steps(one.store) == [10, 11, 12]
    there = {entry.key.split("/")[2][:12] for entry in one.store.list(layout.CHECKPOINT_DATA)}
    assert there == {f"{step:012d}" for step in (10, 11, 12)}


def test_a_run_whose_newest_checkpoints_are_damaged_says_that_none_was_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    begun: tuple[ev.Event, ...] = (created(), ev.AttemptSubmitted(1.0, 1, "job-a1"))
    assert all(Journal(store).append(number, event) for number, event in enumerate(begun))
    save(tmp_path, 5, objects(1))
    save(tmp_path, 20, objects(2))
    store.delete([checkpoints.read(store, 20).files[0].key])
    save(tmp_path, 9, objects(3), keep_last=1)
    assert checkpoints.steps(store) == [5, 9, 20]

    (news,) = Mailbox(store).read()
    (event,) = events_of(news, 2.0)
    reason = f"{tmp_path}: nothing was removed, as what would stay (20) is damaged"
    assert event == ev.PruneRefused(2.0, 1, 9, "node-0", reason)
    assert Journal(store).append(len(begun), event)
    state = replay(Journal(store).read())
    assert state is not None
    assert sentence(event, replay(begun), state) == f"old checkpoints stay where they are: {reason}"
    status = CliRunner().invoke(cli, ["status", str(tmp_path)], catch_exceptions=False)
    assert f"old ones stay: {reason}" in status.output


def test_a_superseded_attempt_commits_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(str(tmp_path))
    raise_fence(store, 1)
    save(tmp_path, 5, objects(1))
    raise_fence(store, 2)
    with caplog.at_level(logging.WARNING):
        late = save(tmp_path, 6, objects(1))
    assert "attempt 2 has begun: attempt 1 commits nothing any more" in caplog.text
    assert late.node.stop_at is not None, "it trains on for nothing"
    assert checkpoints.steps(store) == [5]


def test_what_was_begun_anew_where_a_run_was_removed_is_left_alone_by_who_still_trains_for_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its attempt has the same number, and so have its files the same names."""
    store = open_store(str(tmp_path / "run"))
    Journal(store).append(0, replace(created(), at=1.0))
    old = save(tmp_path / "run", 5, objects(1))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StoreError, match="there is no run at"):
        old.save(objects(3), 7, Position(1, 10, 70), reason="script", metrics={})
    assert checkpoints.steps(store) == [], "the next run would begin with it"
    Journal(store).append(0, replace(created(), at=2.0))
    saved = objects(2)
    save(tmp_path / "run", 10, saved)
    with caplog.at_level(logging.WARNING):
        old.save(objects(3), 10, Position(1, 10, 100), reason="script", metrics={})
        old.save(objects(3), 15, Position(1, 10, 150), reason="script", metrics={})
    assert f"another run has begun at {store.uri}: this one must not write there any more" in caplog.text
    assert old.node.stop_at is not None, "it trains on for nothing"
    assert checkpoints.steps(store) == [10]
    assert checkpoint_retention.uncommitted(store, before_attempt=2) == []
    into = objects(4)
    assert restorer(tmp_path / "run").restore(into) is not None
    assert same(into, saved)


def test_a_step_committed_before_stays_what_it_was(tmp_path: Path) -> None:
    first = objects(1)
    save(tmp_path, 5, first)
    save(tmp_path, 5, objects(2), attempt=2)
    loaded = objects(3)
    assert restorer(tmp_path, attempt=3).restore(loaded) is not None
    assert same(first, loaded)


def test_only_the_newest_are_kept_and_nothing_of_the_others(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, objects(step), keep_last=2)
    store = open_store(str(tmp_path))
    assert checkpoints.steps(store) == [3, 4]
    assert {e.key.split("/")[2] for e in store.list(layout.CHECKPOINT_DATA)} == {
        "000000000003-a0001-g01",
        "000000000004-a0001-g01",
    }


def test_what_a_save_that_was_cut_off_left_is_removed_by_the_next_attempt(tmp_path: Path) -> None:
    save(tmp_path, 5, objects(1))
    store = open_store(str(tmp_path))
    for attempt in (1, 2):
        store.put(f"{layout.checkpoint_data(9, attempt, 1)}rank-00000.bin", b"half")
    restorer(tmp_path, attempt=2).restore(objects(2))
    folders = {entry.key.split("/")[2] for entry in store.list(layout.CHECKPOINT_DATA)}
    assert folders == {"000000000005-a0001-g01", "000000000009-a0002-g01"}


def test_a_save_of_several_workers_parts_is_one(tmp_path: Path) -> None:
    """An agent writes its own part of a state, and that of whoever is lost."""
    store = open_store(str(tmp_path))
    unsettled = UncommittedSaves(store)
    for step in range(4):
        for worker in range(3):
            one = WrittenSave(step, f"{step}/", f"{step}/part-{worker}.json", (f"{step}/rank-{worker}.bin",))
            unsettled.begin(one)
            for key in (one.record, *one.files):
                store.put(key, b"bytes")
            unsettled.announce(one)
    assert {entry.key.split("/")[0] for entry in store.list()} == {"1", "2", "3"}
    assert len(store.list("1/")) == 6


@pytest.mark.parametrize("what", ["set aside", "torn"])
def test_what_was_committed_and_is_damaged_now_keeps_its_files(what: str, tmp_path: Path) -> None:
    """For whoever wants to know why; and another release may read it."""
    worker = SavingWorker(str(tmp_path), keep_last=100)
    for step in range(1, 9):
        worker.saver.save(objects(1), step, Position(), reason="steps", metrics={})
        worker.persister.flush()
        if step == 3 and what == "torn":
            worker.store.put(layout.manifest(3), b"torn")
        elif step == 3:
            checkpoint_retention.quarantine(worker.store, 3, "its bytes have changed")
    assert len(worker.store.list(layout.checkpoint_data(3, 1, 1))) == 2
