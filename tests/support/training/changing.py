"""Trainings whose model or optimizers change their shape at a known step, by a function of the script's own."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

#: The step after which the change is made.
CHANGED = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, 4)
        self.body, self.more, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = self.body(self.emb(x))
        if not isinstance(self.more, nn.Identity):
            at = self.more(at.tanh())
        found: torch.Tensor = self.head(at.tanh())
        return found


class Training:
    """A script's objects, and what changes them."""

    optimizers: tuple[torch.optim.Optimizer, ...]
    changed: Callable[[], None] | None = None  # is called after the change in the loop

    def __init__(self) -> None:
        torch.manual_seed(11)
        self.net = Net()
        self.setup()

    def setup(self) -> None:
        self.optimizers = (torch.optim.AdamW(self.net.parameters(), lr=0.05),)

    def change(self) -> None:
        raise NotImplementedError

    def run(self, begin: int, end: int, stepped: Callable[[int], None] = lambda step: None) -> None:
        for step in range(begin, end):
            if step == CHANGED:
                self.change()
                if self.changed is not None:
                    self.changed()
            x = torch.arange(6).roll(step)
            self.net(x).pow(2).sum().backward()
            for one in self.optimizers:
                one.step()
                one.zero_grad()
            stepped(step + 1)

    def state(self) -> Any:
        return dict(self.net.state_dict()), [one.state_dict() for one in self.optimizers]


class GroupAdded(Training):
    def setup(self) -> None:
        self.net.requires_grad_(False)
        self.net.head.requires_grad_(True)
        self.optimizers = (torch.optim.AdamW(self.net.head.parameters(), lr=0.05),)

    def change(self) -> None:
        self.net.body.requires_grad_(True)
        self.optimizers[0].add_param_group({"params": [*self.net.body.parameters()], "lr": 0.01})


class Thawed(Training):
    def setup(self) -> None:
        self.net.body.requires_grad_(False)
        super().setup()

    def change(self) -> None:
        self.net.body.requires_grad_(True)


class Pruned(Training):
    def change(self) -> None:
        prune.l1_unstructured(self.net.body, "weight", amount=0.5)
        prune.random_structured(self.net.more, "weight", amount=1, dim=0)


class PrunedForGood(Training):
    """The masks go again: what has been pruned stays zero, and may be trained."""

    def setup(self) -> None:
        super().setup()
        prune.l1_unstructured(self.net.body, "weight", amount=0.5)

    def change(self) -> None:
        prune.remove(self.net.body, "weight")


class Parametrized(Training):
    """Weight norm has two parameters in the place of one, which its optimizer still has, and trains no more."""

    def change(self) -> None:
        parametrizations.weight_norm(self.net.body)
        own = self.net.body.parametrizations["weight"]
        self.optimizers[0].add_param_group({"params": [*own.parameters()]})


class NotParametrized(Training):
    def setup(self) -> None:
        parametrizations.weight_norm(self.net.body)
        super().setup()

    def change(self) -> None:
        parametrize.remove_parametrizations(self.net.body, "weight")
        self.optimizers[0].add_param_group({"params": [self.net.body.weight]})


class Grown(Training):
    """An embedding gets two rows, and what the optimizer keeps of it as many."""

    def change(self) -> None:
        (one,), old = self.optimizers, self.net.emb.weight
        torch.manual_seed(5)
        new = nn.Parameter(torch.cat([old.detach(), torch.randn(2, 4)]))
        self.net.emb.weight, self.net.emb.num_embeddings = new, 8
        group = next(group for group in one.param_groups if any(each is old for each in group["params"]))
        group["params"] = [new if each is old else each for each in group["params"]]
        kept = one.state.pop(old, {})
        more = {name: torch.cat([value, torch.zeros(2, 4)]) for name, value in kept.items() if value.dim()}
        if kept:
            one.state[new] = {**kept, **more}


class LoRA(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 4) / 2), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + x @ self.a.T @ self.b.T
        return found


class Adapters(Training):
    def change(self) -> None:
        torch.manual_seed(6)
        for name in ("body", "more"):
            adapter = LoRA(getattr(self.net, name))
            setattr(self.net, name, adapter)
            self.optimizers[0].add_param_group({"params": [adapter.a, adapter.b], "lr": 0.1})


class Peft(Training):
    """Adapters of a library: parameters that are there get other names."""

    def change(self) -> None:
        import peft

        torch.manual_seed(6)
        peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["body", "more"]), self.net)
        new = [one for name, one in self.net.named_parameters() if "lora_" in name]
        self.optimizers[0].add_param_group({"params": new, "lr": 0.1})


class Dropped(Training):
    def change(self) -> None:
        self.net.more = nn.Identity()


class Untied(Training):
    def setup(self) -> None:
        self.net.more.weight = self.net.body.weight
        super().setup()

    def change(self) -> None:
        self.net.more.weight = nn.Parameter(self.net.body.weight.detach().clone())
        self.optimizers[0].add_param_group({"params": [self.net.more.weight]})


class Swapped(Training):
    """Adam is followed by another optimizer."""

    def change(self) -> None:
        self.optimizers = (
            torch.optim.SGD(self.net.body.parameters(), lr=0.1, momentum=0.9),
            torch.optim.SGD(self.net.head.parameters(), lr=0.05),
        )


#: To import the library takes as long as all others together.
KINDS = [
    pytest.param(
        kind,
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed"),
        ]
        if kind is Peft
        else [],
    )
    for kind in Training.__subclasses__()
]
