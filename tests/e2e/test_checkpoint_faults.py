"""A thousand faults over saving and loading: never a committed step lost, never a wrong byte loaded."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from airflow_elastic.adapters import checkpoints, keeping
from airflow_elastic.adapters.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.durable import RESERVED
from airflow_elastic.adapters.mailbox import Mailbox
from airflow_elastic.adapters.reports import raise_fence
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.restoring import Restorer, Room
from airflow_elastic.spec import layout
from tests.support.rivals import Saving, holds, objects

KINDS = ("flip", "truncate", "extend", "remove", "swap", "manifest", "bystander")


class Run:
    """One run that is saved, broken and restored, again and again."""

    def __init__(self, folder: Path, luck: random.Random) -> None:
        self.uri, self.scratch, self.luck = folder / "run", folder / "scratch", luck
        self.scratch.mkdir()
        self.store = open_store(str(self.uri))
        self.attempt, self.damaged = 0, set[int]()

    def save(self) -> None:
        """An attempt saves until somebody is killed; now and then the next one begins before it is dead."""
        self.attempt += 1
        raise_fence(self.store, self.attempt)
        before = checkpoints.steps(self.store)
        first = max(before, default=0) + 1
        saving = Saving(self.uri, self.attempt, first, self.scratch)
        saving.at(first + self.luck.randint(0, 4))
        if self.luck.random() < 0.25:
            self.attempt += 1
            raise_fence(self.store, self.attempt)
            rival = Saving(self.uri, self.attempt, max(first, saving.staged - 2), self.scratch)
            rival.at(saving.staged + 1)
            rival.kill(self.luck.choice(("trainer", "agent", "both")))
            saving.kill("both")
        else:
            staged, who = saving.staged, self.luck.choice(("trainer", "agent", "both"))
            saving.kill(who)
            if who == "trainer":
                assert max(checkpoints.steps(self.store)) >= staged, "what the agent held was not committed"
        after = checkpoints.steps(self.store)
        lost = set(before) - set(after)  # but for those that are older than the newest, which are kept
        assert all(step < min(after) for step in lost), lost
        assert len(after) >= min(len(before), 20)

    def damage(self) -> None:
        """Break files of a checkpoint or two, mostly of the newest."""
        for _ in range(self.luck.choice((0, 0, 1, 1, 2))):
            there = [step for step in checkpoints.steps(self.store) if step not in self.damaged]
            if len(there) < 3:  # somewhere to go back to
                return
            step, kind = self.luck.choice(there[-2:]), self.luck.choice(KINDS)
            folder = self.uri / checkpoints.read(self.store, step).data
            path = folder / self.luck.choice(("rank-00000.bin", "rank-00000.json"))
            if kind == "bystander":  # files that nobody has committed are nobody's
                (folder / "rank-00001.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
                (folder / "part-0000.json").write_text("{}")
                continue
            self.damaged.add(step)
            _break(self.uri / layout.manifest(step) if kind == "manifest" else path, kind, self.luck)
            if kind == "swap":
                other = self.uri / checkpoints.read(self.store, there[0]).data / path.name
                path.write_bytes(other.read_bytes())

    def restore(self) -> None:
        """The next attempt gets the newest that is whole, byte for byte, and says what was wrong with newer ones."""
        there = checkpoints.steps(self.store)
        whole = [step for step in there if step not in self.damaged]
        loaded = objects()
        restorer = Restorer(
            self.store, Ranks(0, 1, None), attempt=self.attempt + 1, room=Room(self.scratch, 1)
        )
        manifest = restorer.restore(loaded)
        if not there:
            assert manifest is None
            return
        assert manifest is not None
        assert manifest.step == max(whole)
        assert manifest.samples == manifest.step
        assert holds(loaded, manifest.step, manifest.attempt)
        news = {one.checkpoint.step: one for one in Mailbox(self.store).read() if one.checkpoint is not None}
        aside = [step for step in there if step > manifest.step]
        for step in aside:
            assert news[step].kind == "damaged"
            said = news[step].checkpoint.reason  # type: ignore[union-attr]
            assert re.search(
                r"bytes have changed|is missing|has \d+ bytes instead of|is no manifest", said
            ), said
            self.damaged.discard(step)  # set aside: its step can be saved again
        for one in Mailbox(self.store).read():
            Mailbox(self.store).done(one)
        if (
            not aside
        ):  # of a step that was set aside twice the files of the first time go with the next attempt
            assert keeping.uncommitted(self.store, self.attempt + 1) == []
        assert list(self.uri.rglob(f"{RESERVED}*")) == []


def _break(path: Path, kind: str, luck: random.Random) -> None:
    data = bytearray(path.read_bytes())
    match kind:
        case "flip" | "manifest":
            data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
            path.write_bytes(data)
        case "truncate":
            path.write_bytes(data[: luck.randrange(len(data))])
        case "extend":
            path.write_bytes(data + b"\0")
        case "remove":
            path.unlink()


@pytest.mark.parametrize(
    "faults", [25, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_whatever_dies_and_whatever_breaks(faults: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck = random.Random(seed)
    run, descriptors = Run(tmp_path, luck), len(os.listdir("/proc/self/fd"))
    try:
        for _ in range(faults):
            run.save()
            run.damage()
            run.restore()
    except (AssertionError, CheckpointDamaged) as error:
        raise AssertionError(f"seed {seed}, attempt {run.attempt}, damaged {run.damaged}: {error}") from error
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    assert not (tmp_path / "pwned").exists()
