"""Lazy modules come back before their first forward pass, with what optimizers keep of their parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from tests.support.training.saving import restorer, save


def lazy(seed: int) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3), nn.LazyBatchNorm1d())


def begun(seed: int) -> Stateful:
    first, critic = lazy(seed), lazy(seed + 1)
    own = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    by_name = {"own": torch.optim.Adam(critic.parameters()), "critic": critic}
    return Stateful(first, (own,), by_name)


def train(objects: Stateful, steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(5, 4)
        (objects.model(x) + objects.others["critic"](x)).pow(2).sum().backward()
        for one in (*objects.optimizers, objects.others["own"]):
            one.step()
            one.zero_grad()


def state(objects: Stateful) -> list[torch.Tensor]:
    return [
        one.clone()
        for each in (objects.model, objects.others["critic"])
        for one in each.state_dict().values()
    ]


def test_they_come_back_and_go_on_as_they_would(tmp_path: Path) -> None:
    one = begun(0)
    train(one, 2)
    save(tmp_path / "run", 2, one)
    there = state(one)
    train(one, 2)
    other = begun(5)
    restorer(tmp_path / "run").restore(other)
    assert all(map(torch.equal, state(other), there))
    train(other, 2)
    assert all(map(torch.equal, state(other), state(one)))
    assert type(other.model[1]) is nn.Linear  # type: ignore[index]
