"""A thousand faults over saving and loading: never a committed step lost, never a wrong byte loaded."""

from __future__ import annotations

import gc
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention, checkpoints
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.records.reports import raise_fence
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.s3 import client
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.poll import events_of
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from tests.support import s3
from tests.support.builders import created
from tests.support.machine import leaks, small_disk
from tests.support.runs.rivals import Saving, fill, holds, objects
from tests.support.runs.rounds import rounds
from tests.support.training.saving import SavingWorker

#: Of one file of a checkpoint; of two of them that belong together; of its manifest; and what is nobody's.
IN_A_FILE = ("flip", "truncate", "extend", "remove", "other step", "other run")


KINDS = (*IN_A_FILE, "other run's both", "manifest", "copied manifest", "bystander")

#: Who is killed: of one worker, or all there are.
WHO = ("trainer", "agent", "both", "all")

#: An attempt that no run here comes to.
NEVER = 99_999


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
        small_disk.fill_up(self.ballast, luck.randrange(100_000))

    def leftovers(self) -> list[str]:
        """What a writer that died has left half-written."""
        if self.bad is None:
            # Of a word to the controller that was cut off whoever opens the store an hour later takes care.
            control = Path(self.uri, layout.CONTROL)
            return [path for path in leaks.half_written(Path(self.uri)) if control not in Path(path).parents]
        self.bad.rules()  # who looks here is not what is tried
        return leaks.half_uploaded(self.bad.server)


class Run:
    """One run that is saved, broken and restored, again and again."""

    def __repr__(self) -> str:
        kept = f"one of every {self.every} is kept, pinned {self.pinned}"
        return f"attempt {self.attempt}, damaged {self.damaged}, {kept}"

    def __init__(self, place: Place, scratch: Path, luck: random.Random) -> None:
        self.place, self.scratch, self.luck = place, scratch, luck
        self.store: Store = open_store(place.uri)
        self.attempt, self.damaged = 0, set[int]()
        self.every, self.pinned = luck.choice((None, 10, 25)), set[int]()
        self.story: RunState = create(created())
        self.perhaps = set[
            int
        ]()  # of those: what is bad may be what the one rank that restores here does not read

    def saving(self, first: int) -> Saving:
        """The next attempt begins to save, with one worker or two."""
        self.attempt += 1
        raise_fence(self.store, self.attempt)
        place, of = self.place, self.luck.randint(1, 2)
        policy: Any = {"keep": place.keep, "every": self.every}
        return Saving(place.uri, self.attempt, first, self.scratch, width=place.width, of=of, **policy)

    def save(self) -> None:
        """An attempt saves until somebody is killed; now and then the next one begins before it is dead."""
        before = checkpoints.steps(self.store)
        self.damaged &= set(before)
        self.perhaps &= set(before)
        wanted, first = self.wanted(), max(before, default=0) + 1
        if self.place.disk is not None and self.luck.random() < 0.5:
            self.save_on_a_full_disk(first)
        else:
            self.save_until_somebody_is_killed(first)
        after = checkpoints.steps(self.store)
        lost = set(before) - set(after)  # but for those that are older than the newest, which are kept
        # One that cannot be read is left alone.
        others = {*wanted, *self.stand_ins(after)}
        kept = [step for step in after if step not in self.damaged and step not in others]
        assert all(step < min(kept) for step in lost), lost
        assert not lost & wanted
        assert len(after) >= min(len(before), self.place.keep)

    def wanted(self) -> set[int]:
        """What stays however old it is, and nobody has damaged: what is pinned, and the first of so many steps."""
        firsts = self.firsts(checkpoints.steps(self.store))
        return {*self.pinned, *(step for interval, step in firsts.items() if interval)} - self.damaged

    def stand_ins(self, there: Sequence[int]) -> set[int]:
        """What stays for the first of so many steps, where nobody can read that one."""
        return set(self.firsts([step for step in there if step not in self.damaged]).values())

    def firsts(self, there: Sequence[int]) -> dict[int, int]:
        """The first of each so many steps, by the number of these; none where they do not stay."""
        firsts: dict[int, int] = {}
        for step in there if self.every else ():
            firsts.setdefault(step // self.every, step)  # type: ignore[operator]
        return firsts

    def save_until_somebody_is_killed(self, first: int) -> None:
        saving = self.saving(first)
        saving.at(first + self.luck.randint(0, 4))
        if self.luck.random() < 0.25:
            rival = self.saving(max(first, saving.staged - 2))
            rival.at(saving.staged + 1)
            rival.kill(self.luck.choice(WHO), self.one_of(rival))
            saving.kill("all")
        else:
            staged, who = saving.staged, self.luck.choice(WHO)
            saving.kill(who, self.one_of(saving))
            if who == "trainer":
                assert max(checkpoints.steps(self.store)) >= staged, "what the agent held was not committed"

    def one_of(self, saving: Saving) -> int:
        return self.luck.randrange(len(saving.agents))

    def save_on_a_full_disk(self, first: int) -> None:
        """What cannot be written is not there, and what was there stays."""
        saving = self.saving(first)
        self.place.fill_up(self.luck)
        saving.at(first + self.luck.randint(2, 8))
        saving.kill(self.luck.choice(("trainer", "both", "all")), self.one_of(saving))
        self.place.ballast.unlink()

    def damage(self) -> None:
        """Break files of a checkpoint or two, mostly of the newest."""
        for _ in range(self.luck.choice((0, 0, 1, 1, 2))):
            there = [step for step in checkpoints.steps(self.store) if step not in self.damaged]
            if len(there) < 3:  # somewhere to go back to
                return
            step, kind = self.luck.choice(there[-2:]), self.luck.choice(KINDS)
            manifest = checkpoints.read(self.store, step)
            key = self.luck.choice(manifest.files).key
            if kind == "bystander":
                self.stand_by(step, key)
                continue
            if kind == "copied manifest":
                copy = there[-1] + self.luck.randint(1, 3)
                if self.store.get(layout.manifest(copy)) is None:
                    self.damaged.add(copy)
                    self.store.put(layout.manifest(copy), self.store.get(layout.manifest(step)) or b"")
                continue
            self.damaged.add(step)
            if kind in ("flip", "truncate", "extend") and not key.endswith((_like(key), ".json")):
                self.perhaps.add(step)
            if kind == "other step":
                of = checkpoints.read(self.store, there[0]).data
                self.store.put(key, self.store.get(f"{of}{_like(key)}") or b"")
            elif kind.startswith("other run"):
                for name, data in self.of_another_run(step).items():
                    if name == _like(key) or kind == "other run's both":
                        self.store.put(f"{manifest.data}{name}", data)
            else:
                self.spoil(layout.manifest(step) if kind == "manifest" else key, kind)

    def pin(self) -> None:
        """Somebody refers to one of the newest, now and then, and to one of the older ones no more."""
        whole = [step for step in checkpoints.steps(self.store) if step not in self.damaged]
        if whole and (not self.pinned or self.luck.random() < 0.2):
            self.pinned.add(step := self.luck.choice(whole[-3:]))
            checkpoint_retention.pin(self.store, step, by="test")
        if len(self.pinned) > 4:
            self.unpin(self.luck.choice(sorted(self.pinned)))

    def unpin(self, step: int) -> None:
        self.pinned.discard(step)
        checkpoint_retention.unpin(self.store, step)

    def stand_by(self, step: int, key: str) -> None:
        """Files that nobody has committed are nobody's: made up, or copies of those that somebody has."""
        folder, copied = key.rpartition("/")[0], self.store.get(key) or b""
        for name in ("rank-00007.bin", "part-0000.json"):
            self.store.put(f"{folder}/{name}", b"cos\nsystem\n(S'touch pwned'\ntR.")
        for name in (key.replace("rank-", "rank-copy-"), f"{folder}/part-0001.json", f"{key}.bak"):
            self.store.put(name, copied)
        self.store.put(f"{layout.MANIFESTS}copy.json", self.store.get(layout.manifest(step)) or b"")

    def of_another_run(self, step: int) -> dict[str, bytes]:
        """What another run has saved after the same step, by the names of its files."""
        worker, what = (
            SavingWorker(str(self.scratch / f"other-{self.attempt}-{step}")),
            objects(self.place.width),
        )
        fill(what, step, NEVER)
        worker.save(what, step, Position(0, step, step), reason="script", metrics={})
        files = checkpoints.read(worker.store, step).files
        return {file.key.rpartition("/")[2]: worker.store.get(file.key) or b"" for file in files}

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
        self.look(there)
        loaded = objects(self.place.width)
        room = WorkerCache(self.scratch / "room", 1)
        manifest = Restorer(self.store, Collectives(0, 1, None), attempt=self.attempt + 1, room=room).restore(
            loaded
        )
        if not there:
            assert manifest is None
            return
        assert manifest is not None
        assert manifest.step == max(whole) or manifest.step in self.perhaps
        assert manifest.samples == manifest.step
        assert holds(loaded, manifest.step, manifest.attempt)
        box = Mailbox(self.store)
        news = {one.checkpoint.step: one for one in box.read() if one.checkpoint and one.kind == "damaged"}
        aside = [step for step in there if step > manifest.step]
        for step in aside:
            said = news[step].checkpoint.reason  # type: ignore[union-attr]
            assert re.search(
                r"bytes have changed|is missing|has \d+ bytes instead of|is no manifest|is a copy of the manifest",
                said,
            ), said
            self.damaged.discard(step)  # set aside: its step can be saved again
            self.perhaps.discard(step)
            self.unpin(step)
        told = self.hear(*(event for one in box.read() for event in events_of(one, 0.0)))
        events = Counter(event.step for event in told if isinstance(event, ev.CheckpointQuarantined))
        assert {step: events[step] for step in aside} == dict.fromkeys(aside, 1)
        for one in box.read():
            box.done(one)
        if (
            not aside
        ):  # of a step that was set aside twice the files of the first time go with the next attempt
            assert checkpoint_retention.uncommitted(self.store, self.attempt + 1) == []
        assert self.place.leftovers() == []
        self.check_what_is_wanted()

    def look(self, there: Sequence[int]) -> None:
        """The controller looks for checkpoints before it submits an attempt."""
        known = self.story.checkpoint.step if self.story.checkpoint else -1
        new = (step for step in there if step > known)
        self.hear(*(ev.CheckpointCommitted(0.0, self.attempt, step, layout.manifest(step)) for step in new))

    def hear(self, *events: ev.Event) -> list[ev.Event]:
        """Those that are news, and so are journaled."""
        news = []
        for event in events:
            before, self.story = self.story, evolve(self.story, event)
            if self.story != before:
                news.append(event)
        return news

    def check_what_is_wanted(self) -> None:
        """Of a place where that takes its time, some of it."""
        wanted = sorted(self.wanted())
        for step in wanted if self.place.bad is None else self.luck.sample(wanted, min(3, len(wanted))):
            assert checkpoints.problems(self.store, checkpoints.read(self.store, step)) == [], step


def _like(key: str) -> str:
    """The first rank's file of the same kind: checkpoints of fewer workers have no others."""
    return f"rank-00000{Path(key).suffix}"


def go_through(place: Place, scratch: Path, faults: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    scratch.mkdir()
    memory = leaks.SharedMemory()
    run, descriptors = Run(place, scratch, luck), len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(faults):
            if place.bad is not None:
                place.bad.rules(*BAD_DAY)
            run.save()
            if place.bad is not None:
                place.bad.rules()
            run.damage()
            run.pin()
            if place.bad is not None:
                place.bad.rules(*BAD_DAY)
            run.restore()
    except (AssertionError, CheckpointDamaged) as error:
        raise AssertionError(f"seed {seed}, {run}: {error}") from error
    assert memory.leaks() == []
    gc.collect()
    if place.bad is None:  # a client keeps its connections
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert not Path("pwned").exists()


@rounds(25, 1000)
def test_whatever_dies_and_whatever_breaks(
    faults: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    go_through(Place(str(tmp_path / "run"), keep=5), tmp_path / "scratch", faults)


@rounds(8, 200)
def test_whatever_dies_on_a_disk_that_fills_up(faults: int, tmp_path: Path) -> None:
    with small_disk.small_disk(tmp_path / "disk") as disk:
        go_through(Place(str(disk / "run"), keep=5, disk=disk), tmp_path / "scratch", faults)


#: Of a hundred requests: so many are refused, carried out and not answered, answered wrongly, not answered at all,
#: not even taken, broken off, late.
BAD_DAY = (
    {"do": "reject", "rate": 0.02},
    {"do": "reject", "status": 500, "rate": 0.02},
    {"do": "lost", "method": "PUT", "rate": 0.03},
    {"do": "late", "method": "PUT", "rate": 0.02},
    {"do": "late", "status": 500, "method": "PUT", "rate": 0.02},
    {"do": "late", "method": "POST", "rate": 0.03},
    {"do": "hang", "rate": 0.01},
    {"do": "silent", "rate": 0.01},
    {"do": "choke", "method": "PUT", "path": "partNumber=", "rate": 0.05},
    {"do": "hang", "method": "PUT", "path": "partNumber=2", "rate": 0.1},
    {"do": "cut", "method": "GET", "rate": 0.05},
    {"do": "stall", "method": "GET", "rate": 0.02},
    {"do": "slow", "bytes": 32 << 20, "rate": 0.05},
    {"do": "delay", "seconds": 0.2, "rate": 0.05},
)


@pytest.fixture
def bad_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.FaultProxy]:
    monkeypatch.setattr(client, "READ_S", 2)  # not half a minute for each request that nobody answers
    with s3.s3_server() as server, s3.fault_proxy(server) as proxy:
        for name, value in proxy.server.env.items():
            monkeypatch.setenv(name, value)
        yield proxy
        proxy.rules()


@rounds(1, 100)
def test_whatever_dies_while_s3_has_a_bad_day(faults: int, bad_server: s3.FaultProxy, tmp_path: Path) -> None:
    wide = 70_000  # 36 MB with the optimizer's: two parts of an upload, also where two workers share it
    place = Place(f"s3://{bad_server.server.bucket}/run", width=wide, keep=4, bad=bad_server)
    go_through(place, tmp_path / "scratch", faults)
    if faults >= 100:
        bad_server.rules()
        assert all(bad_server.injected.values()), bad_server.injected
