"""Optimizers that hold others come back as what they hold, or are refused before the first step, with what to do."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim

from airflow_elastic.runtime.checkpoint.optimizers.composite import saved_in_place_of
from airflow_elastic.runtime.checkpoint.save.overlapped_copy import wait_before_steps
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.optimizers import equal, network
from tests.support.training.saving import restorer, save


class Several(optim.Optimizer):
    """As trainings with Muon have it: `__init__` is not torch's, groups and states are those within."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> Any:
        return [group for one in self.optimizers for group in one.param_groups]

    @property
    def state(self) -> Any:
        return {key: value for one in self.optimizers for key, value in one.state.items()}

    def step(self, closure: Any = None) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none)

    def state_dict(self) -> Any:
        return {str(number): one.state_dict() for number, one in enumerate(self.optimizers)}

    def load_state_dict(self, kept: Any) -> None:
        for number, one in enumerate(self.optimizers):
            one.load_state_dict(kept[str(number)])


class Listed(Several):
    """As Megatron's chained ones: its state dict is a list."""

    def state_dict(self) -> Any:
        return [one.state_dict() for one in self.optimizers]


class Merged(Several):
    """Its state dict is torch's, of what it shows; which has no effect where it is loaded."""

    def __init__(self, *optimizers: Any) -> None:
        super().__init__(*optimizers)
        self._optimizer_state_dict_pre_hooks = self._optimizer_state_dict_post_hooks = OrderedDict()

    def state_dict(self) -> Any:
        return super(Several, self).state_dict()


class NoGroups:
    """No optimizer of torch's, and with nothing that would say of which parameters it is."""

    def __init__(self, **optimizers: Any) -> None:
        self._by_name = optimizers

    def step(self) -> None:
        for one in self._by_name.values():
            one.step()

    def zero_grad(self) -> None:
        for one in self._by_name.values():
            one.zero_grad()

    def state_dict(self) -> Any:
        return {"optimizers": {name: one.state_dict() for name, one in self._by_name.items()}}

    def load_state_dict(self, kept: Any) -> None:
        raise NotImplementedError


class OldGroups(Several):
    """Keeps a list of groups that it has made in the beginning: whoever changes rates changes them there."""

    param_groups: Any = None

    def __init__(self, *optimizers: Any) -> None:
        super().__init__(*optimizers)
        self.param_groups = [group for one in optimizers for group in one.param_groups]


class Lookahead(optim.Optimizer):
    """As timm's: around another one, whose groups are its own, with a state that is not."""

    def __init__(self, base: optim.Optimizer) -> None:
        self._base, self.param_groups, self.defaults = base, base.param_groups, base.defaults
        self.state = defaultdict(dict)

    def step(self, closure: Any = None) -> None:
        self._base.step()

    def state_dict(self) -> Any:
        return self._base.state_dict()

    def load_state_dict(self, kept: Any) -> None:
        self._base.load_state_dict(kept)


class Sharp(optim.Optimizer):
    """As SAM: torch's own state dict, and steps by another one, whose momentum is not in it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base_optimizer = optim.SGD(self.param_groups, lr=0.1, momentum=0.9)
        self.param_groups = self.base_optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        self.base_optimizer.step()


class Counting(Several):
    """Keeps something beside what it holds."""

    def state_dict(self) -> Any:
        return {"steps": 3, "optimizers": super().state_dict()}


def of(kind: Any, model: Any) -> Any:
    muon = optim.Muon([model[0].weight, model[1].weight], lr=0.1)
    adam = optim.AdamW([model[0].bias, model[1].bias], lr=0.1)
    return kind(muon=muon, adam=adam) if kind is NoGroups else kind(muon, adam)


def wrapped(kind: Any, model: Any) -> Any:
    return kind(optim.Adam(model.parameters(), lr=0.1))


KINDS = [Several, Listed, Merged, NoGroups, OldGroups, Lookahead]


def make(kind: Any) -> tuple[Any, Any, Stateful]:
    model = network()
    one = wrapped(kind, model) if kind is Lookahead else of(kind, model)
    return model, one, Stateful(model, (one,), {})


def train(model: Any, one: Any, steps: range) -> None:
    for step in steps:
        model(torch.full((2, 4), 1.0 + step)).pow(2).sum().backward()
        one.step()
        model.zero_grad()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 2])
def test_goes_on_to_the_bit_as_what_it_holds(kind: Any, steps: int, tmp_path: Path) -> None:
    model, one, saved = make(kind)
    train(model, one, range(steps))
    save(tmp_path / "run", 1, saved)
    other, its, loaded = make(kind)
    restorer(tmp_path / "run").restore(loaded)
    for which, of_it in ((model, one), (other, its)):
        train(which, of_it, range(steps, 5))
    assert equal(model.state_dict(), other.state_dict())


def test_its_own_list_of_groups_stays_that_by_which_rates_are_changed(tmp_path: Path) -> None:
    model, one, saved = make(OldGroups)
    train(model, one, range(1))
    save(tmp_path / "run", 1, saved)
    _, its, loaded = make(OldGroups)
    restorer(tmp_path / "run").restore(loaded)
    for group in its.param_groups:
        group["lr"] = 7.0
    assert all(group["lr"] == 7.0 for each in loaded.optimizers for group in each.param_groups)


def test_one_within_another_within_another() -> None:
    model = network()
    one = Several(Lookahead(optim.SGD(model[0].parameters())), NoGroups(a=optim.SGD(model[1].parameters())))
    assert [type(each) for each in saved_in_place_of([one], [])] == [optim.SGD, optim.SGD]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            Sharp,
            r"Sharp\) steps by an inner one, base_optimizer \(SGD\).*run\.restore\(model, optimizer\.base_",
        ),
        (
            Counting,
            r"another form than torch's \(the keys 'steps'.*own=optimizer.*model, \*optimizer\.optimizers\)",
        ),
    ],
)
def test_what_would_be_lost_is_refused_before_the_first_step(kind: Any, said: str) -> None:
    model = network()
    one = Sharp(model.parameters()) if kind is Sharp else of(kind, model)
    with pytest.raises(InvalidInput, match=said):
        Stateful(model, (one,), {})


def test_what_is_said_can_be_done(tmp_path: Path) -> None:
    def make() -> tuple[Any, Any, Stateful]:
        model = network()
        sharp = Sharp(model.parameters())
        return model, sharp, Stateful(model, (sharp.base_optimizer,), {})

    model, one, saved = make()
    train(model, one, range(2))
    save(tmp_path / "run", 1, saved)
    other, its, loaded = make()
    restorer(tmp_path / "run").restore(loaded)
    assert its.param_groups is its.base_optimizer.param_groups
    for which, of_it in ((model, one), (other, its)):
        train(which, of_it, range(2, 5))
    assert equal(model.state_dict(), other.state_dict())


@pytest.mark.parametrize("kind", [Counting, Several])
def test_by_a_name_it_is_kept_as_it_is(kind: Any, tmp_path: Path) -> None:
    def make() -> tuple[Any, Any, Stateful]:
        model = network()
        one = of(kind, model)
        return model, one, Stateful(model, (), {"own": one})

    model, one, saved = make()
    train(model, one, range(2))
    assert wait_before_steps(saved.stepping, lambda: None)
    if kind is Counting:
        one.load_state_dict = lambda kept: Several.load_state_dict(one, kept["optimizers"])
    save(tmp_path / "run", 1, saved)
    other, its, loaded = make()
    if kind is Counting:
        its.load_state_dict = lambda kept: Several.load_state_dict(its, kept["optimizers"])
    restorer(tmp_path / "run").restore(loaded)
    for which, of_it in ((model, one), (other, its)):
        train(which, of_it, range(2, 5))
    assert equal(model.state_dict(), other.state_dict())
