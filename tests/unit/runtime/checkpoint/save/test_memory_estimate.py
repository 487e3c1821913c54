"""What saving takes of a worker's memory is said, and refused, before the first step."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Sequence

import pytest
import torch

from airflow_elastic.runtime.checkpoint.save import memory_estimate
from airflow_elastic.runtime.checkpoint.save.memory_estimate import MemoryEstimate, check_memory
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import together
from tests.support.training.saving import SavingWorker

GB = 10**9


def fresh(width: int) -> Stateful:
    """Before its first step an optimizer has no state yet."""
    model = torch.nn.Linear(1000, width, bias=False)
    return Stateful(model, (torch.optim.AdamW(model.parameters()),), {})


def test_a_training_that_begins_knows_what_its_saves_will_take(
    tmp_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker, objects = SavingWorker(str(tmp_path)), fresh(1000)
    worker.saver.check_memory(objects)
    assert not objects.optimizers[0].state, "it is what it was"
    assert "worker 0: saves take 2 times 0.012 GB of its memory; " in caplog.text
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: {"here": 20_000_000})
    said = r"worker 0 does not have enough memory for saves: saves take 2 times 0.012 GB .* and only 0.02 GB are free"
    with pytest.raises(InvalidInput, match=said):
        worker.saver.check_memory(objects)
    # What its agent has already is not taken once more.
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: {"here": 13_000_000})
    worker.saver.announce(objects)
    worker.persister.provide()
    worker.saver.check_memory(objects)


def test_memory_for_saves_is_provided_before_the_first_step(tmp_path: str) -> None:
    worker, objects = SavingWorker(str(tmp_path)), fresh(1000)
    worker.saver.check_memory(objects)
    worker.persister.provide()
    there = worker.stage.have_bytes
    for one in objects.model.parameters():
        one.grad = torch.ones_like(one)
    objects.optimizers[0].step()
    assert there >= 2 * worker.saver._plan(objects).total_bytes
    worker.saver.announce(objects).join()
    worker.save(objects, 1, Position(), reason="script", metrics={})
    assert worker.stage.have_bytes == there, "the first save had to make room"


def test_where_an_optimizer_does_not_tell_there_has_to_be_memory_for_the_rest(
    tmp_path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    model = torch.nn.Linear(1000, 1000)
    objects = Stateful(model, (type("Mine", (torch.optim.AdamW,), {})(model.parameters()),), {})
    worker = SavingWorker(str(tmp_path))
    worker.saver.check_memory(Stateful(torch.nn.LazyLinear(4), (), {}))
    assert "saves take" not in caplog.text
    worker.saver.check_memory(objects)
    assert "saves take at least 2 times 0.00402 GB of its memory" in caplog.text
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: {"here": 8_000_000})
    with pytest.raises(
        InvalidInput, match=r"saves take at least 2 times 0\.00402 GB .* only 0\.008 GB are free"
    ):
        worker.saver.check_memory(objects)


@pytest.mark.parametrize(
    ("free", "short"), [(11 * GB, None), (9 * GB, "2 times 4 GB .* and 2 GB more for a neighbour's")]
)
def test_all_ranks_hear_of_the_worker_that_has_too_little(
    free: int, short: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on each of two workers that keep each other's: one rank holds more than the others."""
    states = [3 * GB, GB, GB, GB]
    each = [MemoryEstimate(state, GB // 2, 0) for state in states]
    told = checked(each, [{f"machine {rank // 2}": free} for rank in range(4)], monkeypatch, procs=2)
    assert bool(told) == (short is not None)
    if short is not None:
        assert re.search(f"worker 0 does not have enough memory .* {short}", told)


@pytest.mark.parametrize("free", [12 * GB, 11 * GB])
def test_workers_of_one_machine_share_its_memory(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone would have enough."""
    monkeypatch.setenv("AIRFLOW_ELASTIC_MACHINE", "node-of-four")
    each = [MemoryEstimate(GB, 0, 0)] * 3 + [MemoryEstimate(3 * GB, 0, 0)]
    places = [{"machine": free + rank} for rank in range(4)]
    told = checked(each, places, monkeypatch)
    assert bool(told) == (free < 12 * GB)
    if told:
        assert told.startswith(
            "node-of-four does not have enough memory for the saves of its workers 0, 1, 2, 3: they need 12 GB, and "
            "only 11 GB are free there. For the largest of them, saves take 2 times 3 GB of its memory."
        )
    # Where there is one machine more, it fits.
    places[3] = {"another": free}
    assert not checked(each, places, monkeypatch)


def test_pods_with_limits_of_their_own_do_not_take_from_each_others(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [MemoryEstimate(GB, 0, 0)] * 3
    places = [{"machine": 6 * GB, f"group {rank}": 2 * GB} for rank in range(3)]
    assert not checked(each, places, monkeypatch)
    places[1]["group 1"] -= 1
    assert "worker 1 does not have enough memory for saves" in checked(each, places, monkeypatch)
    # The limit around several of them is theirs together.
    places = [{"machine": 90 * GB, f"group {rank}": 2 * GB, "around": 5 * GB} for rank in range(3)]
    assert "its workers 0, 1, 2: they need 6 GB, and only 5 GB" in checked(each, places, monkeypatch)


def checked(
    each: Sequence[MemoryEstimate],
    places: Sequence[dict[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    procs: int = 1,
) -> str:
    """What all ranks are told alike, where this is what each of them wants and has; nothing where it fits."""
    mine = threading.local()
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: places[mine.rank])

    def check(ranks: Collectives) -> str:
        mine.rank = ranks.rank
        try:
            check_memory(each[ranks.rank], ranks, procs)
        except InvalidInput as error:
            return str(error)
        return ""

    (told,) = set(together(len(each), check))
    return str(told)


def test_with_buddies_the_neighbours_state_counts(tmp_path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worker = SavingWorker(str(tmp_path), of=2, policy=CheckpointPolicy(buddies=True))
    worker.stage.keeps = 0
    worker.saver.check_memory(fresh(1000))
    assert "saves take 2 times 0.012 GB of its memory" in caplog.text
    assert re.search(r"GB of its memory, and 0\.0\d+ GB more for a neighbour's", caplog.text)


def test_what_agents_have_of_each_others_already_is_not_taken_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They outlive ranks that fail, with all their memory."""
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: {"here": 20 * GB})
    check_memory(MemoryEstimate(15 * GB, 15 * GB, 30 * GB, 30 * GB), Collectives(0, 1, None), procs=1)
    with pytest.raises(InvalidInput, match="30 GB more for a neighbour's"):
        check_memory(MemoryEstimate(15 * GB, 15 * GB, 30 * GB), Collectives(0, 1, None), procs=1)
