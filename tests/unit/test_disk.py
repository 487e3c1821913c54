"""States on workers' own disks, found there by whoever comes after them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.accounts import read_accounts
from airflow_elastic.adapters.folder import FolderStore
from airflow_elastic.adapters.reports import raise_fence
from airflow_elastic.adapters.store import Reader
from airflow_elastic.runtime import slots
from airflow_elastic.runtime.disk import FORGOTTEN_SECONDS, Disk
from airflow_elastic.runtime.disk_writer import DiskWriter
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.recovering import recover
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.runtime.saving import Position
from airflow_elastic.runtime.slots import DISK, MEMORY
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.consumed import Account
from airflow_elastic.spec.errors import SpecError, StoreError
from airflow_elastic.spec.run import RunSpec
from tests.support.saving import Worker, objects, same


class Machines:
    """As many machines as workers, each with a disk of its own; an attempt after the other comes to them."""

    def __init__(self, base: Path, count: int = 2) -> None:
        self.base, self.run = base, str(base / "run")
        self.folders = [base / f"disk-{number}" for number in range(count)]
        for folder in self.folders:
            folder.mkdir()

    def attempt(self, number: int, on: tuple[int, ...] = (0, 1)) -> list[Worker]:
        """Workers of an attempt, in the order of their numbers, on these machines."""
        workers = []
        for index, machine in enumerate(on):
            folder = str(self.folders[machine])
            worker = Worker(
                self.run, attempt=number, index=index, of=len(on), policy=CheckpointPolicy(disk=folder)
            )
            worker.node.disk = Disk(folder, worker.store.uri, index)
            workers.append(worker)
        raise_fence(workers[0].store, number)
        return workers

    def files(self, name: str = "rank-*.bin") -> list[str]:
        found = [path for folder in self.folders for path in folder.rglob(name)]
        return sorted(f"{path.parent.name}/{path.name}" for path in found)


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def save(workers: list[Worker], step: int, seed: int, reason: str = DISK) -> None:
    """All of them, to their disks, as their threads do."""
    for worker in workers:
        node, rank = worker.node, worker.node.index
        account = Account(node.attempt, 1, rank, len(workers), 0, 100, ())
        assert worker.saver.save(
            objects(seed),
            step,
            Position(1, 10, step * 10),
            reason=reason,
            metrics={"loss": 0.5},
            account=account,
        )
        assert node.disk is not None
        writer = DiskWriter(node, node.disk)
        writer._look(heard=True)


def come(workers: list[Worker]) -> None:
    """What agents do before their ranks start."""
    lead = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    threads = []
    for worker in workers:
        store = lead if worker is workers[0] else TCPStore("127.0.0.1", lead.port, is_master=False)
        members = worker.node.members
        assert members is not None
        assert worker.node.disk is not None
        threads.append(threading.Thread(target=recover, args=(worker.node, worker.node.disk, members, store)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_agents_have_lost_with_their_memory_becomes_a_checkpoint(
    machines: Machines, tmp_path: Path
) -> None:
    """Also where they come back in another order, with one worker more."""
    first = machines.attempt(1)
    save(first, 4, seed=4)
    save(first, 6, seed=6)
    assert checkpoints.steps(first[0].store) == []
    second = machines.attempt(2, on=(1, 0, 1))
    come(second)
    store = second[0].store
    assert checkpoints.steps(store) == [6]
    manifest = checkpoints.read(store, 6)
    assert (manifest.attempt, manifest.world_size, manifest.reason, manifest.samples) == (2, 2, "disk", 60)
    assert list(checkpoints.problems(store, manifest)) == []
    assert [(one.attempt, one.rank) for one in read_accounts(store)] == [(1, 0), (1, 1)]
    loaded = objects(1)
    Restorer(store, Ranks(0, 1, None), attempt=2, room=Room(tmp_path / "room", 1)).restore(loaded)
    assert same(loaded, objects(6))
    assert machines.files() == [
        "000000000006-a0002-g01/rank-00000.bin",
        "000000000006-a0002-g01/rank-00001.bin",
    ]
    assert machines.files("part-*") == machines.files("*-rank-*") == []
    come(machines.attempt(3))  # what is there is in storage: nothing is to be done
    assert checkpoints.steps(store) == [6]
    assert len(machines.files()) == 2


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["rank-*.bin", "rank-*.json", "part-*.json"])
def test_what_is_not_whole_on_a_disk_is_not_used(
    harm: Callable[[Path], None], name: str, machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    first = machines.attempt(1)
    save(first, 4, seed=4)
    save(first, 6, seed=6)
    (path,) = machines.folders[1].rglob(f"000000000006-*/{name}")
    harm(path)
    come(machines.attempt(2))
    assert checkpoints.steps(first[0].store) == [4]
    assert (
        (name == "part-*.json" and harm is Path.unlink)
        or "is not what was written" in caplog.text
        or "cannot be read" in caplog.text
    )


def test_without_a_machine_the_run_goes_on_from_storage(machines: Machines) -> None:
    first = machines.attempt(1)
    save(first, 4, seed=4, reason="steps")
    for worker in first:
        worker.persister.flush()
    save(first, 6, seed=6)
    come(machines.attempt(2, on=(0,)))
    assert checkpoints.steps(first[0].store) == [4]
    assert machines.files() == [
        "000000000004-a0001-g01/rank-00000.bin",  # which that machine reads from there
        "000000000004-a0001-g01/rank-00001.bin",
        "000000000006-a0001-g01/rank-00001.bin",
    ]


def test_a_superseded_attempt_makes_no_checkpoint_of_it(machines: Machines) -> None:
    save(machines.attempt(1), 6, seed=6)
    second = machines.attempt(2)
    raise_fence(second[0].store, 3)
    come(second)
    assert checkpoints.steps(second[0].store) == []
    come(machines.attempt(3))
    assert checkpoints.steps(second[0].store) == [6]


def test_a_worker_that_is_to_end_does_not_wait_for_others(machines: Machines) -> None:
    first = machines.attempt(1)
    first[0].node.stop()
    come(first[:1])


def test_two_states_stay_on_a_disk_and_those_for_memory_do_not_come_there(machines: Machines) -> None:
    workers = machines.attempt(1)
    for step in (2, 4, 6):
        save(workers, step, seed=step)
        save(workers, step + 1, seed=step, reason=MEMORY)
    assert {name.partition("-")[0] for name in machines.files()} == {"000000000004", "000000000006"}
    assert len(machines.files("*-rank-*")) == 4  # what was told of samples
    for worker in workers:
        assert worker.node.disk is not None
        worker.node.disk.clear()
    assert [list(folder.iterdir()) for folder in machines.folders] == [[], []]


def test_training_does_not_wait_for_the_disk(machines: Machines) -> None:
    """One place holds what is still to be written to storage, the other one is just being read."""
    worker = machines.attempt(1, on=(0,))[0]
    at = Position(0, 0, 0)
    assert worker.saver.save(objects(1), 1, at, reason="steps", metrics={})
    assert worker.saver.save(objects(1), 2, at, reason=DISK, metrics={})
    reading = slots.held(worker.node.slots.opened_again(), (1, 2))
    assert reading
    for reason in (DISK, MEMORY):
        assert not worker.saver.save(objects(1), 3, at, reason=reason, metrics={})
    for slot, _ in reading:
        slot.release()
    assert worker.saver.save(objects(1), 3, at, reason=DISK, metrics={})
    assert slots.common(worker.node.slots.of) == [(1, 1), (1, 3)]


class Far(FolderStore):
    """A store that is elsewhere. Attributes: asked: what was read of it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def local_path(self, key: str) -> Path | None:
        return None

    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]:
        self.asked.append(key)
        return super().stream(key, start, size)


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
    room = Room(tmp_path / "room", 1, str(machines.folders[0]))
    assert Restorer(far, Ranks(0, 1, None), attempt=2, room=room).restore(loaded) is not None
    assert same(loaded, objects(6))
    ours = [key for key in far.asked if key.endswith("rank-00000.bin")]
    others = [key for key in far.asked if key.endswith("rank-00001.bin")]
    assert others, "that of the other machine is nowhere else"
    assert bool(ours) == (harm is not None)
    assert ("reading again, from storage alone" in caplog.text) == (harm is flip)
    assert (" 0 GB from disk" in caplog.text) == (harm is not None)


def test_a_disk_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    worker = Worker(str(tmp_path / "run"), policy=CheckpointPolicy(disk=str(tmp_path / "none")))
    disk = Disk(str(tmp_path / "none"), worker.store.uri, 0)
    with pytest.raises(StoreError, match=r"there is no folder .*none on this machine"):
        disk.begin()
    assert worker.saver.save(objects(1), 1, Position(), reason=DISK, metrics={})
    DiskWriter(worker.node, disk)._look(heard=True)
    (told,) = worker.store.list("control/")
    assert b"there is no folder" in (worker.store.get(told.key) or b"")
    assert not (tmp_path / "none").exists()


def test_what_runs_have_forgotten_is_removed(machines: Machines, tmp_path: Path) -> None:
    save(machines.attempt(1), 6, seed=6)
    other = Disk(str(machines.folders[0]), "s3://elsewhere/run", 0)
    other.begin()
    assert len(machines.files()) == 2
    old = time.time() - FORGOTTEN_SECONDS - 1
    for path in [machines.folders[0], *machines.folders[0].rglob("*")]:
        os.utime(path, (old, old))
    other.begin()
    assert len(machines.files()) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"checkpoint": {"disk": "scratch"}}, r"checkpoint\.disk\b.*absolute path"),
        ({"checkpoint": {"disk": "/mnt/../etc"}}, r"checkpoint\.disk\b.*absolute path"),
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
