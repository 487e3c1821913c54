"""States on workers' own disks: what comes there, what stays, and what is read from there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.disk.copies import FORGOTTEN_SECONDS, WorkerDisk
from airflow_elastic.runtime.tiers.disk.writer import DiskWriter
from airflow_elastic.runtime.tiers.shared_memory import DISK, MEMORY
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError, StoreError
from airflow_elastic.spec.run import RunSpec
from tests.support.machine.machines import Far, Machines, flip, save, take
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.training.saving import SavingWorker, objects, same


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_three_states_stay_on_a_disk_and_those_for_memory_do_not_come_there(machines: Machines) -> None:
    workers = machines.attempt(1)
    for step in (2, 4, 6, 8):
        save(workers, step, seed=step)
        save(workers, step + 1, seed=step, reason=MEMORY)
    assert {name.partition("-")[0] for name in machines.files()} == {
        "000000000004",
        "000000000006",
        "000000000008",
    }
    assert len(machines.files("*-rank-*")) == 6  # what was told of samples
    for worker in workers:
        assert worker.node.disk is not None
        worker.node.disk.clear()
    assert [list(folder.iterdir()) for folder in machines.folders] == [[], []]


def test_training_does_not_wait_for_the_disk(machines: Machines) -> None:
    """One place holds what is still to be written to storage, the other one is to come to the disk."""
    worker = machines.attempt(1, on=(0,))[0]
    at = Position(0, 0, 0)
    assert worker.saver.save(objects(1), 1, at, reason="steps", metrics={})
    take(worker)
    assert worker.saver.save(objects(1), 2, at, reason=DISK, metrics={})
    for reason in (DISK, MEMORY):
        assert not worker.saver.save(objects(1), 3, at, reason=reason, metrics={})
    worker.words[shared_page.ON_DISK] = 2
    reading = shared_memory.held(worker.node.slots.opened_again(), (1, 2))
    assert reading
    for reason in (DISK, MEMORY):
        assert not worker.saver.save(objects(1), 3, at, reason=reason, metrics={})
    for slot, _ in reading:
        slot.release()
    assert worker.saver.save(objects(1), 3, at, reason=DISK, metrics={})
    assert shared_memory.common(worker.node.slots.of) == [(1, 1), (1, 3)]


def test_a_worker_with_a_slow_disk_gets_no_further_behind_than_one_state(machines: Machines) -> None:
    """Else there would soon be no state that all of them have."""
    worker = machines.attempt(1, on=(0,))[0]
    at = Position(0, 0, 0)
    assert worker.saver.save(objects(1), 2, at, reason=DISK, metrics={})
    assert not worker.saver.save(objects(1), 4, at, reason=DISK, metrics={})
    assert worker.saver.save(objects(1), 5, at, reason=MEMORY, metrics={}), "there is another place"
    assert worker.saver.save(objects(1), 6, at, reason=MEMORY, metrics={})
    assert shared_memory.common(worker.node.slots.of) == [(1, 2), (1, 6)], (
        "what the disk is to have was copied over"
    )
    assert worker.saver.save(objects(1), 8, at, reason="steps", metrics={})
    take(worker)  # both, the older one first
    assert worker.words[shared_page.ON_DISK] == 8
    assert [name[:12] for name in machines.files()] == ["000000000002", "000000000008"]
    assert worker.saver.save(objects(1), 9, at, reason=DISK, metrics={})


def test_a_save_of_the_same_step_does_not_wait_for_a_disk_that_hangs(machines: Machines) -> None:
    """A final one, for example: it is the later one that counts."""
    worker = machines.attempt(1, on=(0,))[0]
    at = Position(0, 0, 0)
    assert worker.saver.save(objects(1), 2, at, reason=DISK, metrics={})
    hanging = shared_memory.held(worker.node.slots.opened_again(), (1, 2))
    assert worker.saver.save(objects(5), 2, at, reason="final", metrics={})
    worker.persister.write_new()
    assert checkpoints.read(worker.store, 2).reason == "final"
    for slot, _ in hanging:
        slot.release()


def test_a_state_that_ranks_are_just_saving_once_more_is_not_taken_for_one(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = machines.attempt(1, on=(0,))[0]
    assert worker.saver.save(objects(1), 2, Position(), reason=DISK, metrics={})
    whole = shared_memory.held

    def half(of: object, age: tuple[int, int]) -> object:
        (slot, note), *_ = whole(of, age)  # type: ignore[arg-type]
        return [(slot, note), (slot, replace(note, reason="script"))]

    monkeypatch.setattr(shared_memory, "held", half)
    take(worker)
    assert machines.files() == []
    monkeypatch.undo()
    take(worker)
    assert len(machines.files()) == 1


def test_a_full_disk_is_used_again_once_there_is_room(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = machines.attempt(1, on=(0,))[0]
    assert worker.node.disk is not None
    save([worker], 2, seed=2)
    writer = DiskWriter(worker.node, worker.node.disk)

    def full(self: FolderStore, key: str, data: bytes, *, durable: bool = True) -> None:
        raise StoreError("no space left on the device")

    with monkeypatch.context() as patched:
        patched.setattr(FolderStore, "put", full)
        assert worker.saver.save(objects(1), 4, Position(), reason=DISK, metrics={})
        writer._look(heard=True)
    assert [name[:12] for name in machines.files()] == ["000000000002"], "what has no word takes space"
    assert worker.words[shared_page.ON_DISK] == 4, "the next one is not tried"
    assert worker.saver.save(objects(6), 6, Position(), reason=DISK, metrics={})
    writer._look(heard=True)
    assert [name[:12] for name in machines.files()] == ["000000000002", "000000000006"]


@contextmanager
def running(workers: list[SavingWorker]) -> Iterator[list[DiskWriter]]:
    writers = [DiskWriter(worker.node, worker.node.disk) for worker in workers if worker.node.disk]
    for writer in writers:
        writer.start()
    yield writers
    for writer in writers:
        assert writer.stop()


def test_nothing_stays_of_a_training_that_is_complete_and_in_storage(machines: Machines) -> None:
    """Workers of one machine end at the same time."""
    workers = machines.attempt(1, on=(0, 0, 0, 0))
    with running(workers) as writers:
        for worker in workers:
            assert worker.saver.save(objects(1), 4, Position(), reason="final", metrics={})
            worker.persister.flush()
        for writer in writers:
            writer.news()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(machines.files()) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with ThreadPoolExecutor(4) as pool:
            for answer in [pool.submit(one.finish, lambda: True, done=True) for one in writers]:
                answer.result(60)
    assert list(machines.folders[0].iterdir()) == []


def test_what_storage_could_not_be_given_comes_to_the_disk(machines: Machines) -> None:
    worker = machines.attempt(1, on=(0,))[0]
    with running([worker]) as (writer,):
        assert writer.stop()  # it was about to end when this was saved
        assert worker.saver.save(objects(1), 4, Position(), reason="breakpoint", metrics={})
        writer.finish(lambda: False, done=False)
    assert len(machines.files()) == 1


def test_what_storage_does_not_have_stays(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_elastic.runtime.tiers.disk import writer as disk_writer

    monkeypatch.setattr(disk_writer, "_STORED_SECONDS", 0.1)
    workers = machines.attempt(1)
    save(workers, 4, seed=4, reason="final")
    assert workers[0].node.disk is not None
    writer = DiskWriter(workers[0].node, workers[0].node.disk)
    writer._look(heard=True)
    writer.finish(lambda: True, done=True)  # the other one's part is missing
    assert len(machines.files()) == 2


@pytest.mark.parametrize("harm", [None, flip, Path.unlink])
def test_what_is_on_the_disk_is_not_read_from_storage(
    harm: Callable[[Path], None] | None, machines: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    workers = machines.attempt(1)
    save(workers, 6, seed=6, reason="steps")
    for worker in workers:
        worker.persister.flush()
    (bin_file,) = machines.folders[0].rglob("rank-*.bin")
    if harm is not None:
        harm(bin_file)
    far, loaded = Far(machines.run), objects(1)
    assert workers[0].node.disk is not None
    room = WorkerCache(tmp_path / "room", 1, disk=workers[0].node.disk.root)
    room.folder.mkdir()  # one rank alone fetches nothing there, and has nothing to remove
    assert Restorer(far, Collectives(0, 1, None), attempt=2, room=room).restore(loaded) is not None
    assert same(loaded, objects(6))
    assert room.folder.exists()
    ours = [key for key in far.asked if key.endswith("rank-00000.bin")]
    others = [key for key in far.asked if key.endswith("rank-00001.bin")]
    assert others, "that of the other machine is nowhere else"
    assert bool(ours) == (harm is not None)
    assert ("reading again, from storage alone" in caplog.text) == (harm is flip)
    assert (" 0 B from disk" in caplog.text) == (harm is not None)


def test_as_many_states_stay_as_the_policy_says(machines: Machines) -> None:
    machines.keep = 5
    first = machines.attempt(1)
    for step in range(1, 9):
        save(first, step, seed=step)
    there = {path.rpartition("/")[0] for path in machines.files()}
    assert there == {f"{step:012d}-a0001-g01" for step in range(4, 9)}


def test_a_disk_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    worker = SavingWorker(str(tmp_path / "run"), policy=CheckpointPolicy(disk=str(tmp_path / "none")))
    disk = WorkerDisk.of_run(str(tmp_path / "none"), worker.store, 0)
    with pytest.raises(StoreError, match=r"there is no folder .*none on this machine"):
        disk.begin()
    assert worker.saver.save(objects(1), 1, Position(), reason=DISK, metrics={})
    DiskWriter(worker.node, disk)._look(heard=True)
    (told,) = worker.store.list("control/")
    assert b"there is no folder" in (worker.store.get(told.key) or b"")
    assert not (tmp_path / "none").exists()


def test_a_disk_in_which_nothing_can_be_made_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    disk = WorkerDisk.of_run("/proc", SavingWorker(str(tmp_path / "run")).store, 0)
    with pytest.raises(StoreError, match=r"/proc cannot be used: .*; checkpoint.disk has to be writable"):
        disk.begin()


def test_a_disk_that_goes_in_the_middle_of_a_write_is_told_and_not_made(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = machines.attempt(1, on=(0,))[0]
    assert worker.node.disk is not None
    save([worker], 2, seed=2)
    (folder,) = (found for found in machines.folders if any(found.iterdir()))
    assert worker.saver.save(objects(1), 4, Position(), reason=DISK, metrics={})
    prune = WorkerDisk._prune

    def goes(disk: WorkerDisk) -> None:
        monkeypatch.setattr(WorkerDisk, "_prune", prune)
        folder.rename(folder.with_name("gone"))

    monkeypatch.setattr(WorkerDisk, "_prune", goes)
    DiskWriter(worker.node, worker.node.disk)._look(heard=True)
    assert not folder.exists(), "what is meant to be mounted there would be elsewhere"
    (told,) = worker.store.list("control/")
    assert b"there is no folder" in (worker.store.get(told.key) or b"")


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_disk_that_is_written_to_is_waited_for_while_it_takes_something(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    save(workers := machines.attempt(1), 2, seed=2)
    disk = workers[0].node.disk
    assert disk is not None

    class Held:  # as another thread has it, that writes a large state
        left = 3

        def acquire(self, timeout: float) -> bool:
            self.left -= 1
            if goes_on and self.left:
                with disk._throttling.pace(1 << 20):
                    pass
            return not self.left

        def release(self) -> None:
            pass

    monkeypatch.setattr(disk, "_lock", Held())
    if goes_on:
        assert len(list(disk.found(lambda step, why: None))) == 1
    else:
        with pytest.raises(StoreError, match="has taken nothing for 60 s"):
            list(disk.found(lambda step, why: None))


def test_what_runs_have_forgotten_is_removed(machines: Machines) -> None:
    save(machines.attempt(1), 6, seed=6)
    folder = machines.folders[0]
    for theirs in ("airflow-elastic-fork", "airflow-elastic-0123456789abcdeg"):
        (folder / theirs / "node-0" / layout.CHECKPOINT_DATA).mkdir(parents=True)
    other = WorkerDisk(folder / f"airflow-elastic-{'0' * 16}", 0)
    other.begin()
    assert len(machines.files()) == 2
    old = time.time() - FORGOTTEN_SECONDS - 1
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    other.begin()
    assert len(machines.files()) == 1
    assert len(list(folder.iterdir())) == 3, "what is not ours is gone"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"checkpoint": {"disk": "scratch"}}, r"checkpoint\.disk\b.*absolute path"),
        ({"checkpoint": {"disk": "/mnt/../etc"}}, r"checkpoint\.disk\b.*absolute path"),
        ({"checkpoint": {"disk": "/mnt", "disk_keep_last": 2}}, r"checkpoint\.disk_keep_last\b.*at least 3"),
        ({"checkpoint": {"disk_every_steps": 5}}, r"checkpoint\.disk_every_steps\b.*checkpoint\.disk"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        RunSpec.from_dict({"command": ["train.py"], **given})


def test_where_agents_do_not_meet_it_is_refused() -> None:
    from airflow_elastic.launchers import find_launcher

    spec = RunSpec(("train.py",), launcher="python", checkpoint=CheckpointPolicy(disk="/mnt"))
    with pytest.raises(SpecError, match=r"checkpoint\.disk\b.*none with the launcher python.*torchrun"):
        find_launcher("python").refuse(spec)
