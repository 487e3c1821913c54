"""The folder store against killed writers, full disks, missing rights and other people's files."""

from __future__ import annotations

import collections
import fcntl
import os
import random
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.adapters.storage.keys import RESERVED
from airflow_elastic.adapters.storage.open import describe, probe
from airflow_elastic.spec.errors import StoreError, StoreUnfit
from tests.support.machine.small_disk import small_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
_ROOT_ONLY = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount a tiny file system or change its user"
)


def _python(script: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def _temps(root: Path) -> list[Path]:
    return list(root.rglob(f"{RESERVED}*"))


def test_a_killed_create_leaves_a_whole_object_or_none(tmp_path: Path) -> None:
    """SIGKILL at random moments: what was acknowledged is there, what is there is whole, the rest is free."""
    script = """
        import sys
        from airflow_elastic.adapters.storage.folder import FolderStore

        store = FolderStore(sys.argv[1])
        for number in range(10_000):
            key = f"journal {number % 3}/{number:05}"
            assert store.create(key, key.encode() * 20_000)
            print(key, flush=True)
    """
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    rng = random.Random(seed)
    left_behind = 0
    for kill in range(12):
        root = tmp_path / str(kill)
        store = FolderStore(root)
        acknowledged = []
        with _python(script, root) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randrange(1, 40)):
                acknowledged.append(writer.stdout.readline().strip())
            for _ in range(rng.randrange(20_000)):  # some way into the next one
                pass
            writer.kill()
            acknowledged += writer.stdout.read().split("\n")[:-1]
        listed = store.list()
        assert {entry.key for entry in listed} >= set(acknowledged)
        assert len(listed) <= len(acknowledged) + 1, "at most the one that was under way is there besides"
        for entry in listed:
            assert store.get(entry.key) == entry.key.encode() * 20_000, f"{entry.key} is torn"
            assert entry.size == len(entry.key) * 20_000
        number = len(acknowledged)
        key = f"journal {number % 3}/{number:05}"
        assert store.create(key, b"successor") is (key not in {entry.key for entry in listed})
        left_behind += len(_temps(root))
        store.sweep(older_than_s=-1)
        assert _temps(root) == []
        assert [entry.key for entry in store.list()] == sorted({*acknowledged, *(e.key for e in listed), key})
    print(f"{left_behind} temp files after 12 kills")  # noqa: T201


def test_one_winner_among_processes(tmp_path: Path) -> None:
    script = """
        import sys
        from airflow_elastic.adapters.storage.folder import FolderStore

        root, me = sys.argv[1:]
        store = FolderStore(root)
        print(*(number for number in range(200) if store.create(f"journal/{number}", me.encode())))
    """
    processes = [_python(script, tmp_path / "runs", f"writer {number}") for number in range(4)]
    won = {number: process.communicate()[0].split() for number, process in enumerate(processes)}
    assert all(process.returncode == 0 for process in processes)
    tally = collections.Counter(event for events in won.values() for event in events)
    assert tally == {str(number): 1 for number in range(200)}
    store = FolderStore(tmp_path / "runs")
    for number, events in won.items():
        assert all(store.get(f"journal/{event}") == f"writer {number}".encode() for event in events)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    with small_disk(tmp_path / "tiny disk", "64k") as disk:
        yield disk


@_ROOT_ONLY
def test_a_full_disk_is_an_error_and_tears_nothing(tiny_disk: Path, tmp_path: Path) -> None:
    store = FolderStore(tiny_disk / "runs")
    store.put("kept", b"old" * 1000)
    (big := tmp_path / "big").write_bytes(b"new" * 30_000)
    for call in (
        lambda: store.put("kept", b"new" * 30_000),
        lambda: store.create("created", b"new" * 30_000),
        lambda: store.upload("kept", big),
    ):
        with pytest.raises(StoreError, match=r"the disk is full.*free some space"):
            call()
        assert [(e.key, e.size) for e in store.list()] == [("kept", 3000)]
        assert store.get("kept") == b"old" * 1000
        assert _temps(tiny_disk) == []
    written = 0
    with pytest.raises(StoreError, match="the disk is full"):  # noqa: PT012 - nobody knows which one fills it
        while True:
            store.create(f"journal/{written:05}", b"event %5d" % written)
            written += 1
    assert [store.get(entry.key) for entry in store.list("journal/")] == [
        b"event %5d" % n for n in range(written)
    ]
    store.delete(["kept"])
    assert store.create(f"journal/{written:05}", b"event %5d" % written), (
        "it goes on where there is space again"
    )

    with pytest.raises(StoreError, match=r"download.*target.*the disk is full.*check that local path"):
        FolderStore(tmp_path).download("big", tiny_disk / "target")
    assert not (tiny_disk / "target").exists()


@_ROOT_ONLY
def test_a_read_only_disk_is_unfit(tiny_disk: Path) -> None:
    FolderStore(tiny_disk).put("k", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(StoreUnfit, match=r"read-only.*mount it writable"):
        probe(FolderStore(tiny_disk))
    assert FolderStore(tiny_disk).get("k") == b"x"


@_ROOT_ONLY
def test_missing_rights_are_explained(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "runs")
    store.put("k", b"x")
    os.seteuid(65534)
    try:
        for call in (lambda: store.put("k", b"y"), lambda: store.create("c", b""), lambda: probe(store)):
            with pytest.raises(StoreUnfit, match=r"permission denied.*give user id 65534"):
                call()
    finally:
        os.seteuid(0)
    assert store.get("k") == b"x"


def test_a_file_in_place_of_the_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file/below"):
        store = FolderStore(root)
        calls = [
            lambda store=store: store.get("k"),
            lambda store=store: store.read_from("k", 0),
            lambda store=store: store.put("k", b""),
            lambda store=store: store.create("k", b""),
            lambda store=store: store.list(),
            lambda store=store: store.delete(["k"]),
            lambda store=store: store.download("k", tmp_path / "target"),
            lambda store=store: probe(store),
        ]
        for call in calls:
            with pytest.raises(StoreUnfit, match="a file is where a folder has to be"):
                call()
        assert not describe(str(root)).fit
    assert (tmp_path / "file").read_text() == "in the way"


def test_an_object_and_a_folder_of_one_name_are_explained(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a/b", b"x")
    assert store.get("a") is None
    for call in (lambda: store.put("a", b""), lambda: store.create("a", b"")):
        with pytest.raises(StoreUnfit, match="a folder is where the object has to be"):
            call()
    for call in (lambda: store.put("a/b/c/d", b""), lambda: store.create("a/b/c", b"")):
        with pytest.raises(StoreUnfit, match=rf"a file is where a folder has to be at {tmp_path}/a/b;"):
            call()
    assert store.get("a/b/c") is None
    assert [entry.key for entry in store.list()] == ["a/b"]
    assert _temps(tmp_path) == []


def test_probe_removes_what_dead_writers_left_and_nothing_else(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("journal/1", b"x")
    old, held, young = (tmp_path / f"d{n}" / f"{RESERVED}{n}" for n in range(3))
    for temp in (old, held, young):
        temp.parent.mkdir()
        temp.write_bytes(b"half")
    for temp in (old, held):
        os.utime(temp, (1, 1))
    with open(held, "r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        probe(store)
        assert not old.parent.exists(), "its folder is empty now, so it goes as well"
        assert held.exists(), "its writer lives, however slow it is"
        assert young.exists()
    probe(store)
    assert not held.exists(), "its writer let go of it"
    assert young.exists()
    assert [entry.key for entry in store.list()] == ["journal/1"]


def test_files_of_others_do_not_disturb(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("k", b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to(tmp_path)
    Path(os.fsdecode(bytes(tmp_path) + b"/latin-1 \xe9")).write_bytes(b"x")
    assert [entry.key for entry in store.list()] == ["k"]


def test_objects_have_the_modes_that_the_umask_gives(tmp_path: Path) -> None:
    """Workers may run as another user than the controller, so 0600 would hide the journal from them."""
    before = os.umask(0o027)
    try:
        FolderStore(tmp_path).put("a/k", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a/k").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
