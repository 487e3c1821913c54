"""What saving takes of a worker's memory is said, and refused, before the first step."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from airflow_elastic.runtime import footprint
from airflow_elastic.runtime.footprint import Footprint, check_memory
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.runtime.saving import Stateful
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.saving import Worker
from tests.support.threads import together

GB = 10**9


def fresh(width: int) -> Stateful:
    """Before its first step an optimizer has no state yet."""
    model = torch.nn.Linear(1000, width, bias=False)
    return Stateful(model, (torch.optim.AdamW(model.parameters()),), {})


def test_a_training_that_begins_knows_what_its_saves_will_take(
    tmp_path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker, objects = Worker(str(tmp_path)), fresh(1000)
    worker.saver.check_memory(objects)
    assert not objects.optimizers[0].state, "it is what it was"
    assert "saves take 2 times 0.012 GB of its memory; " in caplog.text
    monkeypatch.setattr(footprint, "free_bytes", lambda: 20_000_000)
    said = (
        r"worker 0 has not the memory to save into: saves take 2 times 0.012 GB .* and only 0.02 GB are free"
    )
    with pytest.raises(InvalidInput, match=said):
        worker.saver.check_memory(objects)
    # What its agent has already is not taken once more.
    monkeypatch.setattr(footprint, "free_bytes", lambda: 13_000_000)
    worker.stage.announce(worker.saver._plan(objects))
    worker.persister.provide()
    worker.saver.check_memory(objects)


def test_an_optimizer_that_does_not_tell_is_waited_for(
    tmp_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    model = torch.nn.Linear(4, 4)
    objects = Stateful(model, (torch.optim.LBFGS(model.parameters()),), {})
    worker = Worker(str(tmp_path))
    worker.saver.check_memory(objects)
    worker.saver.check_memory(Stateful(torch.nn.LazyLinear(4), (), {}))
    assert "saves take" not in caplog.text


@pytest.mark.parametrize(
    ("free", "short"), [(11 * GB, None), (9 * GB, "2 times 4 GB .* and 2 GB more for what it")]
)
def test_all_ranks_hear_of_the_worker_that_has_too_little(
    free: int, short: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on each of two workers that keep each other's: one rank holds more than the others."""
    monkeypatch.setattr(footprint, "free_bytes", lambda: free)
    states = [3 * GB, GB, GB, GB]

    def check(ranks: Ranks) -> str:
        try:
            check_memory(Footprint(states[ranks.rank], GB // 2, 0), ranks, procs=2)
        except InvalidInput as error:
            return str(error)
        return ""

    told = together(4, check)
    assert len(set(told)) == 1
    assert bool(told[0]) == (short is not None)
    if short is not None:
        with pytest.raises(InvalidInput, match=f"worker 0 has not the memory .* {short}"):
            raise InvalidInput(told[0])


def test_with_buddies_the_neighbours_state_counts(tmp_path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    worker = Worker(str(tmp_path), of=2, policy=CheckpointPolicy(buddies=True))
    worker.stage.keeps = 0
    worker.saver.check_memory(fresh(1000))
    assert "saves take 2 times 0.012 GB of its memory" in caplog.text
    assert re.search(r"GB of its memory, and 0\.0\d+ GB more for what it keeps", caplog.text)


def test_what_agents_have_of_each_others_already_is_not_taken_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They outlive ranks that fail, with all their memory."""
    monkeypatch.setattr(footprint, "free_bytes", lambda: 20 * GB)
    check_memory(Footprint(15 * GB, 15 * GB, 30 * GB, 30 * GB), Ranks(0, 1, None), procs=1)
    with pytest.raises(InvalidInput, match="30 GB more for what it keeps"):
        check_memory(Footprint(15 * GB, 15 * GB, 30 * GB), Ranks(0, 1, None), procs=1)
