"""What ranks have in memory is written while they train: when it is due, and once, and trouble is told."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.job_files import Members
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.shared_memory import StagingSlot
from airflow_elastic.runtime.tiers.storage import writer
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import StoreError, StoreFull
from airflow_elastic.spec.run import Health
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.machine.small_disk import small_disk
from tests.support.training.saving import SavingWorker, objects, restorer, same, save


def written_by_the_thread(worker: SavingWorker, step: int) -> list[int]:
    """Save for memory only; what the thread that writes makes of it."""
    worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    worker.persister.write_new()
    return checkpoints.steps(worker.store)


def test_what_ranks_began_from_takes_nothing_back_of_what_is_known_since(tmp_path: Path) -> None:
    """Of a newer checkpoint, which `verify` has read."""
    save(tmp_path, 1, objects(1), keep_last=1)
    worker = SavingWorker(str(tmp_path), keep_last=1, generation=2)
    worker.words[shared_page.FROM_STEP], worker.words[shared_page.VERIFIED] = 1.0, 1.0
    for step, expected in ((2, [1, 2]), (3, [1, 3]), (4, [3, 4]), (5, [3, 5])):
        worker.save(objects(step), step, Position(), reason="steps", metrics={})
        assert checkpoints.steps(worker.store) == expected
        _, read = checkpoint_retention.readings(worker.store)
        if step == 2:  # it is written once, however many saves follow
            assert (read[1].by, read[1].at) == ("ranks of attempt 1", 1.0)
        if step == 3:
            checkpoint_retention.note_verified(worker.store, 3)


def test_what_is_for_memory_only_is_written_when_something_happens_and_not_before(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path))
    assert written_by_the_thread(worker, 1) == []
    worker.saver.save(objects(2), 2, Position(), reason="steps", metrics={})
    # It is still to be written: what comes next does not take its place.
    for step in (3, 4, 5):
        worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [2]
    for step in (6, 7, 8):
        assert written_by_the_thread(worker, step) == [2]
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [2, 7, 8], "another worker may not have come to step 8"
    loaded = objects(1)
    manifest = restorer(tmp_path).restore(loaded)
    assert manifest is not None
    assert (manifest.step, manifest.reason) == (8, "memory")
    assert same(objects(8), loaded)


def test_a_step_that_is_in_memory_already_can_be_saved_all_the_same(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path))
    for step in (1, 2):
        assert written_by_the_thread(worker, step) == []
    worker.saver.save(objects(2), 2, Position(), reason="final", metrics={"loss": 1.0})
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [2]
    assert checkpoints.read(worker.store, 2).reason == "final"


def test_a_save_of_a_step_that_is_being_looked_at_in_memory_waits_and_is_written(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="memory", metrics={})
    (slot,) = (slot for slot in worker.node.slots.of[0] if slot.age)
    assert slot.hold()  # as the agent does, to see what it is
    final = threading.Thread(
        target=worker.saver.save,
        args=(objects(1), 1, Position()),
        kwargs={"reason": "final", "metrics": {}},
    )
    final.start()
    final.join(0.2)
    assert final.is_alive(), "there are two slots of one step now"
    slot.release()
    final.join(60)
    worker.persister.write_new()
    assert checkpoints.read(worker.store, 1).reason == "final"


def test_a_step_that_is_still_to_be_written_is_not_copied_into_memory_again(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="seconds", metrics={})
    for step in (1, 2, 3):  # and nobody waits for ever
        worker.saver.save(objects(step), step, Position(), reason="memory", metrics={})
    ages = [slot.age for slot in worker.node.slots.of[0]]
    assert sorted(ages) == [(1, 1), (1, 3)]  # type: ignore[type-var]
    worker.persister.write_new()
    assert checkpoints.steps(worker.store) == [1]


def test_at_a_breakpoint_nobody_waits_for_what_is_still_being_written(tmp_path: Path) -> None:
    """Ranks are to end soon: what they have done is in memory at once, beside what storage is still to have."""
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 4, Position(), reason="steps", metrics={})
    worker.saver.save(objects(2), 5, Position(), reason="breakpoint", metrics={})
    assert checkpoints.steps(worker.store) == [], "nobody has written anything"
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [4, 5]
    loaded = objects(3)
    assert restorer(tmp_path).restore(loaded) is not None
    assert same(objects(2), loaded)


def test_what_somebody_has_locked_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LOCKED_SECONDS", 0.1)
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="steps", metrics={})
    (slot,) = (slot for slot in worker.stage._slots if slot.age)
    assert slot.hold()
    with pytest.raises(StoreError, match="stayed locked"):
        worker.persister.flush()
    slot.release()
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [1]


def test_a_breakpoint_is_not_copied_over_what_is_still_to_be_written(tmp_path: Path) -> None:
    """It may be cut off, and then there would be neither."""
    worker = SavingWorker(str(tmp_path / "run"))
    for step in (10, 20):
        assert worker.saver.save(objects(step), step, Position(), reason="steps", metrics={})
        worker.words[shared_page.KEPT] = 10  # and 20 has yet to be written
    reading = shared_memory.held(worker.node.slots.opened_again(), (1, 10))
    saving = threading.Thread(
        target=worker.saver.save,
        args=(objects(21), 21, Position()),
        kwargs={"reason": "breakpoint", "metrics": {}},
        daemon=True,
    )
    saving.start()
    until(lambda: worker.words[shared_page.WAITING] == shared_page.ENDING, "the rank to wait")
    assert shared_memory.common(worker.node.slots.of) == [(1, 10), (1, 20)]
    for slot, _ in reading:
        slot.release()
    saving.join(PATIENCE_SECONDS)
    assert shared_memory.common(worker.node.slots.of) == [(1, 20), (1, 21)]


def test_what_could_not_be_written_is_tried_again_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SavingWorker(str(tmp_path))
    write = worker.store.write

    def refuse(key: str, data: memoryview, **_: Any) -> None:
        raise StoreError("the storage is out of reach")

    monkeypatch.setattr(worker.store, "write", refuse)
    worker.saver.save(objects(1), 5, Position(), reason="final", metrics={})
    with pytest.raises(StoreError):
        worker.persister.write_new()
    worker.persister.write_new()  # it is not tried for ever while training goes on
    with pytest.raises(StoreError):
        worker.persister.flush()
    monkeypatch.setattr(worker.store, "write", write)
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [5]


def test_memory_that_cannot_be_read_is_told_of_like_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 1, Position(), reason="script", metrics={})

    def no_memory(*_: object) -> memoryview:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(StagingSlot, "data", no_memory)
        with pytest.raises(StoreError, match=r"step 1 cannot be written: .*Cannot allocate memory"):
            worker.persister.flush()
    (told,) = Mailbox(worker.store).read()
    assert told.kind == "unsaved"
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [1]


def test_what_could_not_be_told_is_told_with_the_next_try_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise StoreFull("the disk is full")

    worker = SavingWorker(str(tmp_path / "run"))
    monkeypatch.setattr(writer, "write_files", full)
    for step in (1, 2):
        assert worker.saver.save(objects(1), step, Position(), reason="steps", metrics={})
        with monkeypatch.context() as patched:
            patched.setattr(worker.store, "create", full)
            with pytest.raises(StoreFull):
                worker.persister.write_new()
    for _ in range(3):
        with pytest.raises(StoreFull):
            worker.persister.flush()
    told = [one.checkpoint.step for one in Mailbox(worker.store).read() if one.checkpoint]
    assert told == [1, 2]


def test_what_is_written_late_is_no_news_for_the_ranks_that_follow(tmp_path: Path) -> None:
    """They have steps of their own, which would be taken for written."""
    worker = SavingWorker(str(tmp_path))
    worker.saver.save(objects(1), 9, Position(), reason="script", metrics={})
    worker.node.begin(Members(2, (0,), 0.0))
    words = Page.create(Path(f"{worker.node.rank_files}-rank-0.page")).words
    worker.persister.flush()
    assert checkpoints.steps(worker.store) == [9]
    assert (words[shared_page.WRITTEN], words[shared_page.KEPT]) == (0, 0)


@pytest.mark.parametrize("grace", [1e-6, 1e6])
def test_where_writing_takes_longer_than_workers_get_to_end_it_is_told_once(
    grace: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = SavingWorker(str(tmp_path), health=Health(grace_seconds=grace))
    for step in (1, 2):
        worker.save(objects(1), step, Position(), reason="steps", metrics={})
    told = [one for one in caplog.records if "health.grace_seconds" in one.getMessage()]
    assert len(told) == (1 if grace < 1 else 0)
    assert checkpoints.steps(worker.store) == [1, 2]


def test_a_full_disk_costs_a_save_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        small, large = objects(1), Stateful(torch.nn.Linear(600, 600), (), {})
        save(disk, 5, small)
        worker = SavingWorker(str(disk))
        with pytest.raises(StoreError, match="the disk is full"):
            worker.save(large, 9, Position(), reason="steps", metrics={})
        store = open_store(str(disk))
        (news,) = Mailbox(store).read()
        assert (news.kind, news.by) == ("unsaved", "node-0")
        assert news.checkpoint is not None
        assert news.checkpoint.step == 9
        assert "the disk is full" in news.checkpoint.reason
        assert store.list(layout.checkpoint_data(9, 1, 1)) == []
        worker.save(small, 12, Position(), reason="steps", metrics={})
        assert checkpoints.steps(store) == [5, 12]
        loaded = objects(2)
        assert restorer(disk, attempt=2).restore(loaded) is not None
        assert same(small, loaded)


def test_where_nobody_says_which_one_is_the_best_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the first that is removed: until then nothing is lost."""
    for name, told in (("nosuch", [3]), ("loss", [])):
        worker = SavingWorker(
            str(tmp_path / name), policy=CheckpointPolicy(keep_last=2, keep_best=f"min {name}")
        )
        for step in range(1, 6):
            caplog.clear()
            worker.save(objects(1), step, Position(), reason="script", metrics={"loss": 1.0, "more": step})
            said = "none has a value of 'nosuch'" in caplog.text and "they have loss, more." in caplog.text
            assert said is (step in told)
