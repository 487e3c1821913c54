"""What is loaded is what was committed, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.store import Reader, ignore_progress
from airflow_elastic.control.poll import events_of
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save import random_state
from airflow_elastic.runtime.checkpoint.save import save as saving
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec import events as ev
from tests.support.machine.machines import Far
from tests.support.machine.threads import together
from tests.support.training.saving import SavingWorker, objects, restorer, same, save, wide


def test_what_the_agent_still_has_in_memory_is_not_read_from_storage(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    worker = save(tmp_path, 7, saved)
    (data,) = tmp_path.glob("checkpoints/data/**/*.bin")
    data.write_bytes(b"nobody reads this")
    assert restorer(tmp_path, stage=worker.stage).restore(loaded) is not None
    assert same(saved, loaded)


def test_memory_of_another_step_is_not_taken(tmp_path: Path) -> None:
    saved, loaded = objects(1), objects(2)
    save(tmp_path, 7, saved)
    other = SavingWorker(str(tmp_path / "another run"))
    other.save(objects(3), 8, Position(), reason="script", metrics={})
    assert restorer(tmp_path, stage=other.stage).restore(loaded) is not None
    assert same(saved, loaded)


def test_memory_that_is_not_what_was_committed_is_left_for_storage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved, loaded = objects(1), objects(2)
    worker = save(tmp_path, 7, saved)
    slot, at = worker.stage.memory(1, 7, dict)["model.0.weight", (0, 0)]
    os.pwrite(slot.fileno(), b"\xff", at)
    assert restorer(tmp_path, stage=worker.stage).restore(loaded) is not None
    assert same(saved, loaded)
    assert "model.0.weight in the memory of this worker's agent is not what was committed" in caplog.text
    assert "reading again, from storage alone" in caplog.text
    (news,) = Mailbox(worker.store).read()
    (event,) = events_of(news, 1.0)
    why = "model.0.weight in the memory of this worker's agent is not what was committed: its bytes have changed"
    assert event == ev.CopyRefused(1.0, 2, 7, "node-0", f"{why}. It was read from storage instead")


def test_another_torch_than_saved_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It promises neither the same bits, nor the same order of samples for a seed."""
    save(tmp_path, 5, objects(1))
    restorer(tmp_path).restore(objects(2))
    assert "another" not in caplog.text
    monkeypatch.setitem(saving.VERSIONS, "torch", "9.9.9")
    assert restorer(tmp_path).restore(objects(2)) is not None
    assert f"checkpoint 5 was saved with torch {torch.__version__}, but this is torch 9.9.9" in caplog.text


def test_where_there_is_none_nothing_changes(tmp_path: Path) -> None:
    fresh, untouched = objects(1), objects(1)
    assert restorer(tmp_path).restore(fresh) is None
    assert same(fresh, untouched)


def test_a_generator_that_was_not_there_keeps_its_own_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5, objects(1))
    capture = random_state.capture
    monkeypatch.setattr(
        random_state, "capture", lambda: {**capture(), "cuda": torch.zeros(16, dtype=torch.uint8)}
    )
    assert restorer(tmp_path).restore(objects(2)) is not None


class Counting(Far):
    """Says what is read of it."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.fetched: list[str] = []
        self.streamed: dict[str, int] = {}

    def download(
        self, key: str, path: Path, *, durable: bool = True, told: Callable[[int], None] = ignore_progress
    ) -> None:
        self.fetched.append(key)
        super().download(key, path, durable=durable, told=told)

    def stream(self, key: str, start: int, size: int) -> AbstractContextManager[Reader]:
        self.streamed[key] = self.streamed.get(key, 0) + size
        return super().stream(key, start, size)


@pytest.mark.parametrize("alike", [True, False])
def test_each_worker_has_what_may_differ_among_ranks_in_memory_where_it_does_not(
    alike: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first rank's counts, and of a mean over weights every rank has the same, as a rule."""

    def training(seed: int) -> Stateful:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        return Stateful(model, (), {"mean": torch.nn.Linear(4, 4), "best": torch.nn.Linear(2, 2)})

    saved = [training(1), training(1)]
    for number, one in enumerate(saved):
        one.model(torch.randn(8, 4, generator=torch.Generator().manual_seed(0 if alike else number)))
        torch.nn.init.constant_(one.others["mean"].weight, 0.0 if alike else number)
    workers = [SavingWorker(str(tmp_path), index=index, of=2) for index in (0, 1)]
    for worker, one in zip(workers, saved, strict=True):
        worker.save(one, 3, Position(), reason="script", metrics={})
    loaded, far = [training(2), training(3)], [Counting(str(tmp_path)) for _ in workers]

    def restore(ranks: Collectives) -> None:
        room, stage = WorkerCache(tmp_path / "room", 1), workers[ranks.rank].stage
        assert Restorer(far[ranks.rank], ranks, attempt=2, room=room, stage=stage).restore(loaded[ranks.rank])

    together(2, restore)
    for one in loaded:
        for mine, first in zip(
            (one.model, *one.others.values()), (saved[0].model, *saved[0].others.values()), strict=True
        ):
            torch.testing.assert_close(mine.state_dict(), first.state_dict(), rtol=0, atol=0)
    assert far[0].streamed == {}
    assert bool(far[1].streamed) is not alike
    assert "is not what was committed" not in caplog.text
    assert Mailbox(workers[0].store).read() == []


@pytest.mark.parametrize("staged", [True, False])
def test_only_what_ranks_of_a_worker_need_more_than_once_is_fetched_whole(
    staged: bool, tmp_path: Path
) -> None:
    saved = wide(7)  # a layer of 6 MB for each of two files, twice that of the optimizer's
    workers = [SavingWorker(str(tmp_path), index=index, of=2) for index in (0, 1)]
    for worker in workers:
        worker.save(saved, 3, Position(), reason="script", metrics={})
    manifest = checkpoints.read(workers[0].store, 3)
    far, told = Counting(str(tmp_path)), dict[int, list[tuple[int, int]]]()
    loaded = [wide(1), wide(2)]

    def restore(ranks: Collectives) -> bool:
        room = WorkerCache(tmp_path / "room", 2)
        stage = workers[0].stage if staged else None
        restorer = Restorer(
            far,
            ranks,
            attempt=2,
            room=room,
            stage=stage,
            told=lambda done, whole: told.setdefault(ranks.rank, []).append((done, whole)),
        )
        assert restorer.restore(loaded[ranks.rank]) is not None
        return restorer.verified

    # With one worker's part from memory nobody knows what storage has of it.
    assert together(2, restore) == [not staged] * 2
    assert all(same(one, saved) for one in loaded)
    assert sorted(told) == [0, 1]
    for steps in told.values():
        assert steps == sorted(steps), "it goes on, and of as much as was said at first"
        assert len({whole for _, whole in steps}) == 1
        assert steps[-1][0] == steps[-1][1] > 0
    if staged:  # all but the random state of the other worker's rank is in memory
        (other,) = (file for file in manifest.files if file.key.endswith("rank-00001.bin"))
        assert far.fetched == []
        assert far.streamed.keys() == {other.key}
        assert 0 < far.streamed[other.key] < other.size
    else:
        files = [file for file in manifest.files if file.key.endswith(".bin")]
        assert sorted(far.fetched) == [file.key for file in files]
        assert far.streamed == {}
        for rank, steps in told.items():  # each fetches one of them, and tells of parts of it
            size, whole = files[rank].size, steps[0][1]
            assert sum(0 < done < size for done, _ in steps) >= 2
            assert (size, whole) in steps
    assert not (tmp_path / "room").exists()
