"""What agents find on their machines' disks becomes a checkpoint, or is left alone."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints, checksums
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.disk import recovery
from airflow_elastic.runtime.tiers.disk.copies import DiskManifest
from airflow_elastic.runtime.tiers.disk.recovery import NotRecovered
from airflow_elastic.spec import layout
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import InvalidInput, StoreError
from airflow_elastic.spec.run import Health
from tests.support.machine.machines import Machines, come, cut, flip, save
from tests.support.training.saving import SavingWorker, objects, same
from tests.support.training.saving import save as saved


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


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
    assert manifest.data == layout.recovered_data(6, 2, 1)
    assert list(checkpoints.problems(store, manifest)) == []
    assert [(one.attempt, one.rank) for one in read_accounts(store)] == [(1, 0), (1, 1)]
    loaded = objects(1)
    Restorer(store, Collectives(0, 1, None), attempt=2, room=WorkerCache(tmp_path / "room", 1)).restore(
        loaded
    )
    assert same(loaded, objects(6))
    assert machines.files() == [
        "000000000006-a0002-g01-disk/rank-00000.bin",
        "000000000006-a0002-g01-disk/rank-00001.bin",
    ]
    assert machines.files("*-rank-*") == []
    come(machines.attempt(3))  # what is there is in storage: nothing is to be done
    assert checkpoints.steps(store) == [6]
    assert len(machines.files()) == 2


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
@pytest.mark.parametrize("name", ["rank-*.bin", "rank-*.json", "part-*.json"])
@pytest.mark.parametrize("older", [False, True])
def test_what_is_not_whole_on_a_disk_is_not_used_and_hides_nothing(
    older: bool,
    harm: Callable[[Path], None],
    name: str,
    machines: Machines,
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = machines.attempt(1)
    save(first, 4, seed=4)
    save(first, 6, seed=6)
    harmed, good = (4, 6) if older else (6, 4)
    (path,) = machines.folders[1].rglob(f"{harmed:012d}-*/{name}")
    harm(path)
    come(machines.attempt(2))
    assert checkpoints.steps(first[0].store) == [good]
    told = "cannot be read" if harm is Path.unlink or name == "part-*.json" else "is not what was written"
    nobody_looks = older and name != "part-*.json"
    nothing_to_tell = nobody_looks or (name == "part-*.json" and harm is Path.unlink)
    assert (f"{path} {told}" in caplog.text) != nothing_to_tell


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink])
def test_with_a_damaged_account_of_samples_it_is_not_whole(
    harm: Callable[[Path], None], machines: Machines
) -> None:
    """What storage has of it already stays."""
    first = machines.attempt(1)
    save(first, 4, seed=4)
    save(first, 6, seed=6)
    (path,) = machines.folders[1].rglob("000000000006-rank-*.json")
    good = path.read_bytes()
    first[1].store.put(key := f"{layout.accounts(1, 1, 6)}1.json", good)
    harm(path)
    come(machines.attempt(2))
    assert checkpoints.steps(first[0].store) == [4]
    assert first[0].store.get(key) == good


def test_of_several_copies_one_that_is_whole_will_do(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    """Three workers come to two machines, and each of them may be asked for what is damaged on its own."""
    first = machines.attempt(1)
    save(first, 4, seed=4)
    save(first, 6, seed=6)
    (word,) = machines.folders[0].rglob("000000000006-*/part-*.json")
    copy = machines.folders[1] / word.parent.relative_to(machines.folders[0])
    shutil.copytree(word.parents[3], copy.parents[2])
    for path in machines.folders[0].rglob("000000000006-*/rank-*.bin"):
        flip(path)
    come(machines.attempt(2, on=(0, 0, 1)))
    assert checkpoints.steps(first[0].store) == [6]
    assert "step 6 is not recovered: node-0 has 1 damaged parts of it" in caplog.text
    assert "step 6 is not recovered: node-1 has 1 damaged parts of it" in caplog.text


def test_a_folder_that_cannot_be_read_hides_no_other(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = machines.attempt(1, on=(0, 0))
    save(first, 6, seed=6)
    (machines.folders[0] / next(machines.folders[0].iterdir()).name / "node-00").mkdir()
    glob = Path.glob

    def broken(self: Path, pattern: str) -> Iterator[Path]:
        if self.name == "node-00":
            raise OSError(5, "Input/output error")
        return glob(self, pattern)

    second = machines.attempt(2, on=(0, 0))
    monkeypatch.setattr(Path, "glob", broken)
    come(second)
    assert checkpoints.steps(first[0].store) == [6]


def test_a_manifest_that_nobody_can_read_makes_way_for_what_disks_have_whole(machines: Machines) -> None:
    first = machines.attempt(1)
    save(first, 20, seed=4)
    store = first[0].store
    store.put(layout.manifest(20), b"torn")
    come(machines.attempt(2))
    assert checkpoints.problems(store, checkpoints.read(store, 20)) == []
    assert list(checkpoint_retention.quarantined(store)) == [20]
    assert {(one.kind, one.checkpoint.step) for one in Mailbox(store).read() if one.checkpoint} == {
        ("damaged", 20)
    }


def test_one_of_another_release_stays_and_so_does_what_disks_have(machines: Machines) -> None:
    first = machines.attempt(1)
    save(first, 20, seed=4)
    store, before = first[0].store, machines.files()
    store.put(layout.manifest(20), b'{"version": 1000}')
    come(machines.attempt(2))
    assert (store.get(layout.manifest(20)), machines.files()) == (b'{"version": 1000}', before)
    assert not checkpoint_retention.quarantined(store)
    store.delete([layout.manifest(20)])
    come(machines.attempt(3))
    assert checkpoints.problems(store, checkpoints.read(store, 20)) == []


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
    with pytest.raises(NotRecovered, match="attempt 3 has begun"):
        come(second)
    assert checkpoints.steps(second[0].store) == []
    come(machines.attempt(3))
    assert checkpoints.steps(second[0].store) == [6]


def test_a_worker_that_is_to_end_does_not_wait_for_others(machines: Machines) -> None:
    first = machines.attempt(1)
    first[0].node.stop()
    assert come(first[:1]) == [False]


def test_a_worker_that_has_not_answered_in_time_ends_the_start(machines: Machines) -> None:
    """One that hangs would hold all up, and nobody would know."""
    worker = machines.attempt(1)[0]
    spec = replace(worker.node.record.spec, health=Health(start_seconds=0.2))
    worker.node.record = replace(worker.node.record, spec=spec)
    with pytest.raises(NotRecovered, match=r"`found/0/1` was not sent, .* within 0 s"):
        come([worker])


def test_whoever_writes_for_longer_than_a_start_may_take_is_waited_for(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state may be as large as it likes, as long as something of it comes within that time."""
    save(machines.attempt(1), 6, seed=6)
    second = machines.attempt(2)
    now, looked = [0.0], threading.Event()
    limit, store = second[0].node.record.spec.health.start_seconds, second[1].store
    upload, writer = store.upload, list[int]()

    def monotonic() -> float:
        seen = now[0]
        if writer and threading.get_ident() not in writer:
            looked.set()
        return seen

    def slow(key: str, path: Path) -> None:
        upload(key, path)
        now[0] += 0.7 * limit
        writer.append(threading.get_ident())
        looked.clear()
        assert looked.wait(60)

    monkeypatch.setattr(store, "upload", slow)
    monkeypatch.setattr(
        recovery, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep, time=time.time)
    )
    assert come(second) == [True, True]
    assert len(writer) > 1
    assert now[0] > limit
    assert checkpoints.steps(store) == [6]


def test_what_could_not_be_written_is_tried_again_and_never_mixed(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(machines.attempt(1), 6, seed=6)
    second = machines.attempt(2)

    def full(key: str, path: Path) -> None:
        raise StoreError("the storage is full")

    monkeypatch.setattr(second[1].store, "upload", full)
    with pytest.raises(NotRecovered, match=r"step 6 on their disks.*node-1: the storage is full"):
        come(second)
    monkeypatch.undo()
    save(second, 6, seed=7, reason="steps")  # had they gone on all the same, and come to that step
    second[1].persister.flush()
    assert checkpoints.steps(second[0].store) == [], "part 0 of one state and part 1 of another"
    third = machines.attempt(3)
    come(third)
    assert checkpoints.steps(third[0].store) == [6]
    loaded, manifest = objects(1), checkpoints.read(third[0].store, 6)
    assert manifest.reason == "steps", "that of the later attempt"
    room = WorkerCache(machines.base / "room", 1)
    Restorer(third[0].store, Collectives(0, 1, None), attempt=3, room=room).restore(loaded)
    assert same(loaded, objects(7))


def test_what_went_another_way_does_not_come_back(machines: Machines) -> None:
    """Two machines have step 15 of the first attempt; the second, on others, went on from 4 and has committed 6."""
    first = machines.attempt(1)
    save(first, 15, seed=15)
    store = first[0].store
    second = [SavingWorker(machines.run, attempt=2, index=index, of=2) for index in range(2)]
    for worker in second:
        worker.save(objects(6), 6, Position(), reason="steps", metrics={})
    come(machines.attempt(3))
    assert checkpoints.steps(store) == [6]
    assert machines.files() == []


def test_a_run_that_is_begun_anew_at_the_same_place_finds_nothing(machines: Machines) -> None:
    first = machines.attempt(1)
    save(first, 15, seed=15)
    first[0].store.put(layout.journal_entry(0), b"another run")
    come(machines.attempt(2))
    assert checkpoints.steps(first[0].store) == []


@pytest.mark.parametrize("of", [1, 2])
def test_what_somebody_else_has_put_there_is_not_used(
    of: int, machines: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A word that tells of files elsewhere; and a whole folder that others can write to."""
    first = machines.attempt(1)
    save(first, 6, seed=6)
    (tmp_path / "secret").write_text("of somebody")
    for folder in machines.folders:
        (word,) = folder.rglob("part-*.json")
        part = decode(DiskManifest, json.loads(word.read_bytes())["word"]).part
        files = [replace(file, key=str(tmp_path / "secret")) for file in part.manifest.files]
        bad = replace(part, node=0, of=1, manifest=replace(part.manifest, files=tuple(files)))
        if of == 1:
            plain = encode(DiskManifest(bad))
            word.write_text(json.dumps({"word": plain, "seal": checksums.of(json.dumps(plain).encode())}))
        else:
            next(folder.iterdir()).chmod(0o777)
    come(machines.attempt(2))
    assert checkpoints.steps(first[0].store) == []
    assert ("outside of its folder" if of == 1 else "is not trusted") in caplog.text


def test_where_no_worker_can_use_its_disk_the_run_does_not_begin(machines: Machines) -> None:
    for folder in machines.folders:
        folder.rmdir()
    with pytest.raises(InvalidInput, match=r"no folder .*disk-0 on this machine: mount one, or name another"):
        come(machines.attempt(1))
    machines.folders[1].mkdir()
    assert come(machines.attempt(1)) == [True, True], "one of them has it"
    machines.folders[1].rename(machines.base / "gone")
    saved(Path(machines.run), 5, objects(5))
    assert come(machines.attempt(1, generation=2)) == [True, True], "something would be lost"
    assert come(machines.attempt(2)) == [True, True]


def test_a_disk_that_fails_is_done_without(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(machines.attempt(1), 6, seed=6)

    def broken(self: Path, pattern: str) -> list[Path]:
        raise OSError(5, "Input/output error")

    second = machines.attempt(2)
    monkeypatch.setattr(Path, "glob", broken)
    assert come(second) == [True, True]
    assert "this machine's disk cannot be read, so its copies are not used" in caplog.text
