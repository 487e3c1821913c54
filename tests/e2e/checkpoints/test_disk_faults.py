"""Whatever happens to machines' disks, the next attempt begins with the newest state that is there whole.

Which that is, is found out here by comparing every file with what it was before anything happened to it.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.tiers.disk.recovery import NotRecovered
from airflow_elastic.runtime.tiers.shared_memory import DISK
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import StoreError
from tests.support.machine.machines import Far, Machines, come, cut, flip, try_to_save
from tests.support.runs.rounds import rounds
from tests.support.training.saving import SavingWorker, objects, same

MACHINES = 3
LENGTH = 100  # of an epoch, as `save` tells


@dataclass(frozen=True)
class Saved:
    """A state: which attempt, and which of its generations, saved it after which step, and why."""

    attempt: int
    generation: int
    step: int
    reason: str


@dataclass(frozen=True)
class Half:
    """One worker's part of a state, as it was written."""

    state: Saved
    part: int
    of: int
    files: dict[Path, bytes]


class Run:
    """A run, attempt after attempt.

    Attributes:
        attempt: number of the newest one.
        generation: of its.
        recovered: how often a state came from disks.
    """

    def __init__(self, machines: Machines, luck: random.Random) -> None:
        self.machines, self.luck = machines, luck
        self.attempt, self.generation, self.recovered = 0, 1, 0
        self._seeds: dict[Saved, int] = {}
        self._in_storage: Saved | None = None  # its attempt is the one in whose name it is there
        self._seed_in_storage = 0
        self._before: list[SavingWorker] = []
        self._written: defaultdict[str, list[Half]] = defaultdict(list)  # by the name of its folder

    def begin(self) -> None:
        """The next attempt, or generation, comes to some of the machines, and finds the newest state."""
        if self.attempt and self.luck.random() < 0.25:
            self.generation += 1
        else:
            self.attempt, self.generation = self.attempt + 1, 1
        where = [self.luck.randrange(MACHINES) for _ in range(self.luck.randint(1, MACHINES + 1))]
        workers = self.machines.attempt(self.attempt, tuple(where), self.generation)
        expected = self._newest_whole(where)
        if self.luck.random() < 0.1:
            store: Any = self.luck.choice(workers).store
            store.upload = _full
        try:
            assert all(come(workers))
        except NotRecovered as error:
            if expected is None or "the storage is full" not in str(error):
                raise
            assert self._newest_whole(where) == expected, "it is there for the next attempt"
            return
        if expected is not None:
            self.recovered += 1
            self._seed_in_storage = self._seeds[expected]
            self._in_storage = replace(expected, attempt=self.attempt, generation=self.generation)
        self._check(workers)
        newest = self._train(workers)
        assert newest is None or newest in self._whole(where), "what all have saved is not there any more"

    def _check(self, workers: list[SavingWorker]) -> None:
        disk, store, loaded = workers[0].node.disk, Far(self.machines.run), objects(1)
        room = WorkerCache(self.machines.base / "room", 1, disk=disk.root if disk else None)
        manifest = Restorer(store, Collectives(0, 1, None), attempt=self.attempt, room=room).restore(loaded)
        if self._in_storage is None:
            assert manifest is None
            return
        assert manifest is not None
        assert manifest.step == self._in_storage.step
        assert same(loaded, objects(self._seed_in_storage)), "another state's bytes"
        assert list(checkpoints.problems(store, manifest)) == []
        for account in read_accounts(store):
            assert account.length == LENGTH, "another account than was told"

    def _train(self, workers: list[SavingWorker]) -> Saved | None:
        """Some saves; the last one may not come to all disks. Perhaps one of the attempt before comes late.

        Returns the newest that has come to all disks.
        """
        newest = None
        step = self._in_storage.step if self._in_storage else 0
        for _ in range(self.luck.randint(0, 4)):
            step += self.luck.randint(1, 3)
            newest = self._save(workers, step, DISK)
            if self.luck.random() < 0.15:
                step += 1
                newest = self._save(workers, step, "steps")
                for worker in workers:
                    worker.persister.flush()
                self._in_storage, self._seed_in_storage = newest, self._seeds[newest]
        if self.luck.random() < 0.5:
            some = self.luck.sample(workers, self.luck.randint(1, len(workers)))
            self._save(some, step + 1, self.luck.choice([DISK, "asked"]))
        if self._before and self.luck.random() < 0.2:
            self._save(self._before, 1 + max(state.step for state in self._seeds), DISK)
        self._before = workers
        return newest

    def _save(self, workers: list[SavingWorker], step: int, reason: str) -> Saved:
        state = Saved(workers[0].node.attempt, workers[0].node.generation, step, reason)
        self._seeds.setdefault(state, len(self._seeds) + 2)
        for worker in try_to_save(workers, step, self._seeds[state], reason):
            assert worker.node.disk is not None
            folder = (
                worker.node.disk.root / f"node-{worker.node.index}" / layout.CHECKPOINT_DATA / _name(state)
            )
            if workers is not self._before or folder.exists():  # a late one's are the oldest, and go first
                self._written[folder.name].append(_half(folder, state))
        return state

    # -- what happens to disks, and what is whole after it ---------------------------------------------------------

    def harm(self) -> None:
        """Let some things happen to what lies on disks."""
        for _ in range(self.luck.randint(0, 4)):
            files = sorted(
                path for each in self.machines.folders for path in each.rglob("*") if path.is_file()
            )
            if files:
                self._harm(files)

    def _harm(self, files: list[Path]) -> None:
        path = self.luck.choice(files)
        match self.luck.choice(["cut", "flip", "remove", "swap", "copy", "rename", "lose"]):
            case "cut":
                cut(path)
            case "flip":
                flip(path)
            case "remove":
                path.unlink()
            case "swap":  # another file's bytes
                path.write_bytes(self.luck.choice(files).read_bytes())
            case "copy":  # to where another worker of this machine, or of another one, has its own
                target = self.luck.choice(files).parent.with_name(path.parent.name)
                if target != path.parent:
                    shutil.copytree(path.parent, target, dirs_exist_ok=True)
            case "rename":  # into another attempt's name
                target = path.parent.with_name("000000000099-a0001-g01")
                if not target.exists():
                    path.parent.rename(target)
            case "lose" if self.luck.random() < 0.2:
                machine = self.luck.choice(self.machines.folders)
                shutil.rmtree(machine)
                machine.mkdir()

    def _folders(self, machine: int) -> list[Path]:
        found = self.machines.folders[machine].glob(f"*/node-*/{layout.CHECKPOINT_DATA}*")
        return [path for path in found if not path.name.endswith(layout.RECOVERED)]

    def _newest_whole(self, where: list[int]) -> Saved | None:
        """The newest state that goes on from storage, of which all is on these machines as it was written."""
        stored = self._in_storage
        found = [
            state
            for state in self._whole(where)
            if stored is None
            or (
                (state.attempt, state.generation) >= (stored.attempt, stored.generation)
                and state.step > stored.step
            )
        ]
        return max(found, key=astuple, default=None)

    def _whole(self, where: list[int]) -> set[Saved]:
        there: defaultdict[tuple[Saved, int], set[int]] = defaultdict(set)
        for folder in (folder for machine in set(where) for folder in self._folders(machine)):
            for half in self._written[folder.name]:
                if all(_is(folder.parents[2] / name, data) for name, data in half.files.items()):
                    there[half.state, half.of].add(half.part)
        return {state for (state, of), parts in there.items() if parts == set(range(of))}


def _half(folder: Path, state: Saved) -> Half:
    """What has just been written."""
    (word,) = folder.glob("part-*.json")
    part = json.loads(word.read_bytes())["word"]["part"]
    assert part["manifest"]["reason"] == state.reason
    accounts = folder.parents[2].glob(f"{layout.accounts(state.attempt, state.generation, state.step)}*")
    files = {
        path.relative_to(folder.parents[2]): path.read_bytes() for path in (*folder.iterdir(), *accounts)
    }
    assert len(files) == 4, "word, data, index, account"
    return Half(state, part["node"], part["of"], files)


def _name(state: Saved) -> str:
    return Path(layout.checkpoint_data(state.step, state.attempt, state.generation)).name


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _full(key: str, path: Path) -> None:
    raise StoreError("the storage is full")


@rounds(15, 1000)
def test_whatever_happens_to_disks(faults: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    run = Run(Machines(tmp_path, MACHINES), random.Random(seed))
    try:
        for _ in range(faults):
            run.harm()
            run.begin()
    except Exception as error:
        raise AssertionError(f"seed {seed}, attempt {run.attempt}: {error}") from error
    assert run.recovered >= faults // 10, f"seed {seed}: hardly ever was there anything to find"
