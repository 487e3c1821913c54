"""A thousand faults over saving and loading: never a committed step lost, never a wrong byte loaded."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_elastic.adapters import checkpoints, keeping
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.durable import RESERVED
from airflow_elastic.adapters.mailbox import Mailbox
from airflow_elastic.adapters.reports import raise_fence
from airflow_elastic.adapters.store import Store
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.spec import layout
from tests.support import s3
from tests.support.rivals import Saving, holds, objects
from tests.support.rounds import rounds

KINDS = ("flip", "truncate", "extend", "remove", "swap", "manifest", "bystander")


@dataclass
class Place:
    """Where a run lies.

    Attributes:
        uri: the run.
        width: of the model that is saved.
        keep: how many checkpoints stay.
        disk: what can be filled up.
        bad: what makes the storage bad while somebody saves.
    """

    uri: str
    width: int = 32
    keep: int = 20
    disk: Path | None = None
    bad: s3.FaultProxy | None = None

    @property
    def ballast(self) -> Path:
        assert self.disk is not None
        return self.disk / "ballast"

    def fill_up(self, luck: random.Random) -> None:
        """Leave room for less than a few checkpoints."""
        left = luck.randrange(100_000)
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, _free(self.ballast) - left))

    def leftovers(self) -> list[str]:
        """What a writer that died has left half-written."""
        if self.bad is None:
            # Of a word to the controller that was cut off whoever opens the store an hour later takes care.
            control = Path(self.uri, layout.CONTROL)
            return [str(path) for path in Path(self.uri).rglob(f"{RESERVED}*") if control not in path.parents]
        self.bad.rules()  # who looks here is not what is tried
        server = self.bad.server
        uploads = server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads", ())
        return [upload["Key"] for upload in uploads]


def _free(path: Path) -> int:
    about = os.statvfs(path)
    return about.f_bavail * about.f_bsize


class Run:
    """One run that is saved, broken and restored, again and again."""

    def __init__(self, place: Place, scratch: Path, luck: random.Random) -> None:
        self.place, self.scratch, self.luck = place, scratch, luck
        self.store: Store = open_store(place.uri)
        self.attempt, self.damaged = 0, set[int]()

    def saving(self, first: int) -> Saving:
        """The next attempt begins to save."""
        self.attempt += 1
        raise_fence(self.store, self.attempt)
        place = self.place
        return Saving(place.uri, self.attempt, first, self.scratch, width=place.width, keep=place.keep)

    def save(self) -> None:
        """An attempt saves until somebody is killed; now and then the next one begins before it is dead."""
        before = checkpoints.steps(self.store)
        first = max(before, default=0) + 1
        if self.place.disk is not None and self.luck.random() < 0.5:
            self.save_on_a_full_disk(first)
        else:
            self.save_until_somebody_is_killed(first)
        after = checkpoints.steps(self.store)
        lost = set(before) - set(after)  # but for those that are older than the newest, which are kept
        assert all(step < min(after) for step in lost), lost
        assert len(after) >= min(len(before), self.place.keep)

    def save_until_somebody_is_killed(self, first: int) -> None:
        saving = self.saving(first)
        saving.at(first + self.luck.randint(0, 4))
        if self.luck.random() < 0.25:
            rival = self.saving(max(first, saving.staged - 2))
            rival.at(saving.staged + 1)
            rival.kill(self.luck.choice(("trainer", "agent", "both")))
            saving.kill("both")
        else:
            staged, who = saving.staged, self.luck.choice(("trainer", "agent", "both"))
            saving.kill(who)
            if who == "trainer":
                assert max(checkpoints.steps(self.store)) >= staged, "what the agent held was not committed"

    def save_on_a_full_disk(self, first: int) -> None:
        """What cannot be written is not there, and what was there stays."""
        saving = self.saving(first)
        self.place.fill_up(self.luck)
        saving.at(first + self.luck.randint(2, 8))
        saving.kill(self.luck.choice(("trainer", "both")))
        self.place.ballast.unlink()

    def damage(self) -> None:
        """Break files of a checkpoint or two, mostly of the newest."""
        for _ in range(self.luck.choice((0, 0, 1, 1, 2))):
            there = [step for step in checkpoints.steps(self.store) if step not in self.damaged]
            if len(there) < 3:  # somewhere to go back to
                return
            step, kind = self.luck.choice(there[-2:]), self.luck.choice(KINDS)
            folder = checkpoints.read(self.store, step).data
            name = self.luck.choice(("rank-00000.bin", "rank-00000.json"))
            if kind == "bystander":  # files that nobody has committed are nobody's
                self.store.put(f"{folder}rank-00001.bin", b"cos\nsystem\n(S'touch pwned'\ntR.")
                self.store.put(f"{folder}part-0000.json", b"{}")
                continue
            self.damaged.add(step)
            if kind == "swap":
                other = self.store.get(checkpoints.read(self.store, there[0]).data + name)
                assert other is not None
                self.store.put(folder + name, other)
            else:
                self.spoil(layout.manifest(step) if kind == "manifest" else folder + name, kind)

    def spoil(self, key: str, kind: str) -> None:
        data = bytearray(self.store.get(key) or b"")
        match kind:
            case "flip" | "manifest":
                data[self.luck.randrange(len(data))] ^= 1 << self.luck.randrange(8)
                self.store.put(key, bytes(data))
            case "truncate":
                self.store.put(key, bytes(data[: self.luck.randrange(len(data))]))
            case "extend":
                self.store.put(key, bytes(data) + b"\0")
            case "remove":
                self.store.delete([key])

    def restore(self) -> None:
        """The next attempt gets the newest that is whole, byte for byte, and says what was wrong with newer ones."""
        there = checkpoints.steps(self.store)
        whole = [step for step in there if step not in self.damaged]
        loaded = objects(self.place.width)
        room = Room(self.scratch / "room", 1)
        manifest = Restorer(self.store, Ranks(0, 1, None), attempt=self.attempt + 1, room=room).restore(
            loaded
        )
        if not there:
            assert manifest is None
            return
        assert manifest is not None
        assert manifest.step == max(whole)
        assert manifest.samples == manifest.step
        assert holds(loaded, manifest.step, manifest.attempt)
        box = Mailbox(self.store)
        news = {one.checkpoint.step: one for one in box.read() if one.checkpoint and one.kind == "damaged"}
        aside = [step for step in there if step > manifest.step]
        for step in aside:
            said = news[step].checkpoint.reason  # type: ignore[union-attr]
            assert re.search(
                r"bytes have changed|is missing|has \d+ bytes instead of|is no manifest", said
            ), said
            self.damaged.discard(step)  # set aside: its step can be saved again
        for one in box.read():
            box.done(one)
        if (
            not aside
        ):  # of a step that was set aside twice the files of the first time go with the next attempt
            assert keeping.uncommitted(self.store, self.attempt + 1) == []
        assert self.place.leftovers() == []


def go_through(place: Place, scratch: Path, faults: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    scratch.mkdir()
    run, descriptors = Run(place, scratch, luck), len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(faults):
            if place.bad is not None:
                place.bad.rules(*BAD_DAY)
            run.save()
            if place.bad is not None:
                place.bad.rules()
            run.damage()
            if place.bad is not None:
                place.bad.rules(*BAD_DAY)
            run.restore()
    except (AssertionError, CheckpointDamaged) as error:
        raise AssertionError(f"seed {seed}, attempt {run.attempt}, damaged {run.damaged}: {error}") from error
    if place.bad is None:  # a client keeps its connections
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert not Path("pwned").exists()


@rounds(25, 1000)
def test_whatever_dies_and_whatever_breaks(
    faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go_through(Place(str(tmp_path / "run")), tmp_path / "scratch", faults)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with room for some checkpoints."""
    (disk := tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@rounds(8, 200)
def test_whatever_dies_on_a_disk_that_fills_up(faults: int, small_disk: Path, tmp_path: Path) -> None:
    go_through(Place(str(small_disk / "run"), keep=5, disk=small_disk), tmp_path / "scratch", faults)


#: Of a hundred requests: so many are refused, carried out and not answered, answered wrongly, broken off, late.
BAD_DAY = (
    {"do": "reject", "rate": 0.04},
    {"do": "lost", "method": "PUT", "rate": 0.03},
    {"do": "late503", "method": "PUT", "rate": 0.03},
    {"do": "late503", "method": "POST", "rate": 0.03},
    {"do": "cut", "method": "GET", "rate": 0.05},
    {"do": "delay", "seconds": 0.2, "rate": 0.05},
)


@pytest.fixture
def bad_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.FaultProxy]:
    if not os.environ.get(s3.FAULTS):
        pytest.skip(f"set {s3.FAULTS} to the fault proxy program (cluster/operators/s3faults) to run this")
    with s3.s3_server() as server, s3.fault_proxy(server) as proxy:
        for name, value in proxy.server.env.items():
            monkeypatch.setenv(name, value)
        yield proxy
        proxy.rules()


@rounds(4, 100)
def test_whatever_dies_while_s3_has_a_bad_day(faults: int, bad_server: s3.FaultProxy, tmp_path: Path) -> None:
    wide = 60_000  # 31 MB with the optimizer's: two parts of an upload
    place = Place(f"s3://{bad_server.server.bucket}/run", width=wide, keep=4, bad=bad_server)
    go_through(place, tmp_path / "scratch", faults)
