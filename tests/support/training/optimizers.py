"""Optimizers of many kinds, and what of them is to come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import optim

from airflow_elastic.runtime.checkpoint.save.stateful import Stateful

Make = Callable[[torch.nn.Sequential], tuple[optim.Optimizer, ...]]


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


def stateful(make: Make, steps: int = 0, model: torch.nn.Sequential | None = None) -> Stateful:
    model = model or network()
    made = Stateful(model, make(model), {})
    train(made, steps)
    return made


def train(what: Stateful, steps: int, *, start: int = 0) -> None:
    for step in range(start, start + steps):
        what.model(torch.full((2, 4), 1.0 + step)).pow(2).sum().backward()
        for one in what.optimizers:
            one.step()
            one.zero_grad()


def kept(what: Stateful) -> Any:
    """All that is to be the same, without what is nobody's business: objects' identities."""
    return [one.state_dict() for one in what.optimizers], what.model.state_dict()


def equal(one: Any, other: Any) -> bool:
    if torch.is_tensor(one):
        return torch.is_tensor(other) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


class Unknown(optim.AdamW):
    """Of a class that is none of torch's own."""


def halves(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
    return optim.AdamW(of[0].parameters(), lr=0.1), optim.AdamW(of[1].parameters(), lr=0.2)


MAKERS: dict[str, Make] = {
    "adamw": lambda of: (optim.AdamW(of.parameters(), lr=0.1),),
    "a tensor as rate": lambda of: (optim.AdamW(of.parameters(), lr=torch.tensor(0.1), foreach=False),),
    "of names": lambda of: (optim.Adam(of.named_parameters(), amsgrad=True),),
    "plain sgd": lambda of: (optim.SGD(of.parameters(), lr=0.1),),
    "two plain sgd": lambda of: tuple(
        optim.SGD(each.parameters(), lr=0.1 / n) for n, each in enumerate(of, 1)
    ),
    "nadam": lambda of: (optim.NAdam(of.parameters()),),
    "adafactor": lambda of: (optim.Adafactor(of.parameters()),),
    "adagrad": lambda of: (optim.Adagrad(of.parameters()),),
    "two": halves,
    "not torch's": lambda of: (Unknown(of.parameters(), lr=0.1),),
    "groups": lambda of: (
        optim.AdamW(
            [{"params": of[0].parameters(), "lr": 0.3}, {"params": of[1].parameters(), "weight_decay": 0.0}]
        ),
    ),
    "of a part": lambda of: (optim.AdamW(of[1].parameters(), lr=0.1),),
}


class NeedsGradients(Unknown):
    def step(self, closure: Any = None) -> Any:
        if any(
            one.grad is None or not one.grad.any() for group in self.param_groups for one in group["params"]
        ):
            raise ValueError("no gradients")
        return super().step(closure)
