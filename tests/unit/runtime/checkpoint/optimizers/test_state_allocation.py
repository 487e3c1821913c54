"""Room for what an optimizer keeps, as a step of its own would have made it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

from airflow_elastic.runtime.checkpoint.optimizers.state_allocation import (
    allocate_state,
    with_allocated_state,
)
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.saving import restorer, save

optim = torch.optim


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    made = torch.nn.Sequential(
        torch.nn.Linear(5, 4), torch.nn.Linear(4, 1), torch.nn.Linear(1, 2, dtype=torch.float64)
    )
    made[1].weight.requires_grad_(False)
    return made


def shapes(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """What is in its state, but for the numbers, as torch sees it."""
    state = get_optimizer_state_dict(model, optimizer)["state"]
    return {
        name: {
            key: (tuple(value.shape), value.dtype, value.device, value.requires_grad, type(value))
            if torch.is_tensor(value)
            else value
            for key, value in states.items()
        }
        for name, states in state.items()
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda of: optim.AdamW(of.parameters()),
        lambda of: optim.Adam(of.parameters(), amsgrad=True),
        lambda of: optim.Adam(of.parameters(), fused=True),
        lambda of: optim.AdamW(of.parameters(), lr=torch.tensor(0.1), foreach=False),
        lambda of: optim.SGD(of.parameters(), lr=0.1, momentum=0.9),
        lambda of: optim.AdamW(of.named_parameters()),
        lambda of: optim.RMSprop(of.parameters(), centered=True, momentum=0.1),
        lambda of: optim.Adadelta(of.parameters()),
        lambda of: optim.NAdam(of.parameters()),
        lambda of: optim.Adamax(of.parameters()),
        lambda of: optim.SGD(
            [{"params": of[0].parameters(), "momentum": 0.5}, {"params": of[2].parameters()}], lr=0.1
        ),
    ],
)
def test_it_is_the_room_that_a_step_would_make(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    ours, theirs = model(), model()
    mine, their_own = make(ours), make(theirs)
    assert allocate_state(mine)
    assert shapes(ours, mine) == shapes(theirs, their_own)
    assert all(one.grad is None for one in ours.parameters())
    for before, after in zip(model().parameters(), ours.parameters(), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(
    "make",
    [
        lambda of: optim.SGD(of.parameters(), lr=0.1),  # keeps nothing
        lambda of: optim.Adagrad(of.parameters()),  # has it from the beginning
        lambda of: optim.Adafactor(of.parameters()),
        lambda of: optim.LBFGS(of[0].parameters()),
        lambda of: type("Mine", (optim.Adam,), {})(of.parameters()),
    ],
)
def test_of_others_nothing_is_known(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    ours, theirs = model(), model()
    mine, their_own = make(ours), make(theirs)
    before = {name: dict(state) for name, state in mine.state.items()}
    assert not allocate_state(mine)
    assert {name: dict(state) for name, state in mine.state.items()} == before
    if not isinstance(mine, optim.LBFGS):
        assert shapes(ours, mine) == shapes(theirs, their_own)


def test_what_is_there_stays() -> None:
    ours = model()
    mine = optim.AdamW(ours.parameters())
    ours[0].weight.grad = torch.ones_like(ours[0].weight)
    mine.step()
    kept = mine.state[ours[0].weight]["exp_avg"].clone()
    mine.zero_grad()
    assert not allocate_state(mine)
    assert torch.equal(mine.state[ours[0].weight]["exp_avg"], kept)


@pytest.mark.parametrize("sharded", [False, True])
def test_to_find_out_how_large_it_is_takes_no_memory(sharded: bool) -> None:
    """A GPU's memory would stay in torch's hands, in blocks that the training cannot use."""
    with process_group():
        ours = fully_shard(model()) if sharded else model()
        mine = optim.AdamW(ours.parameters(), fused=True)
        with with_allocated_state([mine]):
            for parameter, state in mine.state.items():
                assert state["exp_avg"].shape == state["exp_avg_sq"].shape == parameter.shape
                assert [name for name, one in state.items() if not one.is_meta] == ["step"]
            assert mine.state.keys() == {one for one in ours.parameters() if one.requires_grad}
        assert not mine.state


def stepped(kind: Callable[..., torch.optim.Optimizer]) -> Stateful:
    made = model()
    mine = kind(made.parameters(), lr=0.1)
    made[0](torch.ones(1, 5)).sum().backward()
    mine.step()
    return Stateful(made, (mine,), {})


def test_where_a_checkpoint_does_not_fit_there_is_no_room_either(tmp_path: Path) -> None:
    """A state of whatever was in memory would be trained on."""
    save(tmp_path / "run", 1, stepped(partial(optim.SGD, momentum=0.9)))
    other = model()
    wrong = optim.AdamW(other.parameters())
    with pytest.raises(InvalidInput, match="exp_avg"):
        restorer(tmp_path / "run").restore(Stateful(other, (wrong,), {}))
    assert not wrong.state


def test_a_restore_makes_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = stepped(optim.AdamW)
    save(tmp_path / "run", 1, saved)
    other = model()
    again = optim.AdamW(other.parameters())
    monkeypatch.setattr(again, "step", lambda *_, **__: pytest.fail("a step"))
    assert restorer(tmp_path / "run").restore(Stateful(other, (again,), {})) is not None
    found, expected = (one.state_dict()["state"] for one in (again, saved.optimizers[0]))
    assert found.keys() == expected.keys() == {0, 1}  # the others have had no gradient yet
    for index, state in expected.items():
        assert state.keys() == found[index].keys()
        assert all(torch.equal(found[index][name], value) for name, value in state.items())
