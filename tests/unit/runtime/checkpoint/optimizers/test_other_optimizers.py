"""What an optimizer keeps is not given to another one, or to parameters that it was not of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim
from torch.distributed.fsdp import fully_shard

from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.optimizers import (
    MAKERS,
    Make,
    NeedsGradients,
    equal,
    halves,
    network,
    stateful,
    train,
)
from tests.support.training.saving import restorer, save


def test_groups_are_told_apart_by_their_parameters(tmp_path: Path) -> None:
    def two(of: torch.nn.Sequential, *, turned: bool = False) -> tuple[optim.Optimizer, ...]:
        groups = [{"params": list(each.parameters()), "lr": 0.1 * n} for n, each in enumerate(of, 1)]
        return (optim.SGD(groups[::-1] if turned else groups, lr=1.0, momentum=0.9),)

    saved, loaded = stateful(two, steps=1), stateful(lambda of: two(of, turned=True))
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert [group["lr"] for group in loaded.optimizers[0].param_groups] == [0.2, 0.1]
    for one in (saved, loaded):
        train(one, 2)
    assert equal(saved.model.state_dict(), loaded.model.state_dict())


def in_groups(*sizes: int) -> Make:
    def make(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
        left = iter(of.parameters())
        return (optim.AdamW([{"params": [next(left) for _ in range(size)]} for size in sizes]),)

    return make


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (in_groups(4), "the script's optimizers have 1 groups .* saved have 2"),
        (in_groups(1, 1, 2), "the script's optimizers have 3 groups .* saved have 2"),
        (in_groups(3, 1), r"the group of 0\.bias, the checkpoint's lacks 1\.weight"),
        (in_groups(1, 3), r"the group of 0\.weight, the checkpoint's has 0\.bias, too"),
    ],
)
def test_other_groups_are_refused(theirs: Make, said: str, tmp_path: Path) -> None:
    """Whose settings would they be?"""
    save(tmp_path / "run", 1, stateful(in_groups(2, 2), steps=1))
    with pytest.raises(
        InvalidInput, match=rf"^checkpoint 1 of .*{said}.*Use the model and optimizers that were saved"
    ):
        restorer(tmp_path / "run").restore(stateful(theirs))


def test_a_checkpoint_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    """What room was made for would be trained on."""
    saved, loaded = Stateful(network(), (), {}), stateful(MAKERS["adamw"])
    save(tmp_path / "run", 1, saved)
    with pytest.raises(InvalidInput, match=r"the script's optimizers have 1 groups .* saved have 0"):
        restorer(tmp_path / "run").restore(loaded)
    assert not loaded.optimizers[0].state


def test_what_does_not_fit_leaves_nothing_of_a_damaged_one_before(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, Stateful(network(), (), {}))
    save(tmp_path / "run", 2, stateful(MAKERS["adamw"], steps=1))
    data = next((tmp_path / "run/checkpoints/data").glob("*2-*/rank-00000.bin"))
    data.write_bytes(bytes(data.stat().st_size))
    loaded = stateful(MAKERS["adamw"])
    with pytest.raises(InvalidInput):
        restorer(tmp_path / "run").restore(loaded)
    assert not loaded.optimizers[0].state


@pytest.mark.parametrize("steps", [0, 1])
def test_optimizers_of_other_classes_may_be_given_in_another_order(steps: int, tmp_path: Path) -> None:
    def two(of: torch.nn.Sequential, *, turned: bool = False) -> tuple[optim.Optimizer, ...]:
        adam = optim.AdamW(of[0].parameters(), betas=(0.9, 0.99) if turned else (0.5, 0.6))
        sgd = optim.SGD(of[1].parameters(), lr=0.1, momentum=0.9 if turned else 0.3)
        return (sgd, adam) if turned else (adam, sgd)

    saved, loaded = stateful(two, steps), stateful(lambda of: two(of, turned=True))
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    for one in (saved, loaded):
        train(one, 2)
    assert equal(saved.model.state_dict(), loaded.model.state_dict())
    assert loaded.optimizers[1].param_groups[0]["betas"] == (0.5, 0.6)


def test_names_in_a_group_are_the_scripts(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, stateful(MAKERS["of names"], steps=1))
    loaded = stateful(lambda of: (optim.Adam([*of.named_parameters()][::-1], amsgrad=True),))
    restorer(tmp_path / "run").restore(loaded)
    assert loaded.optimizers[0].param_groups[0]["param_names"][0] == "1.bias"


def sgd_and(kind: type[optim.Optimizer], *, turned: bool = False) -> Make:
    def make(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
        made = kind(of[0].parameters(), lr=0.1), optim.SGD(of[1].parameters(), lr=0.1)
        return made[::-1] if turned else made

    return make


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        (MAKERS["adamw"], MAKERS["plain sgd"]),
        (MAKERS["plain sgd"], MAKERS["adamw"]),
        (sgd_and(optim.AdamW), halves),
        (sgd_and(optim.SGD), sgd_and(optim.AdamW)),
        (sgd_and(optim.AdamW), sgd_and(optim.SGD, turned=True)),
    ],
)
def test_optimizers_of_another_class_are_refused(
    saved: Make, loaded: Make, steps: int, tmp_path: Path
) -> None:
    """Where nothing is kept yet, the settings tell."""
    save(tmp_path / "run", 1, stateful(saved, steps))
    with pytest.raises(
        InvalidInput, match=r"of another class|the (script|checkpoint) has no optimizer\.state"
    ):
        restorer(tmp_path / "run").restore(stateful(loaded))


def test_a_scheduler_that_comes_or_goes_is_no_other_class(tmp_path: Path) -> None:
    saved = stateful(MAKERS["plain sgd"], steps=1)
    optim.lr_scheduler.StepLR(saved.optimizers[0], 3)
    save(tmp_path / "run", 1, saved)
    loaded = stateful(lambda of: (optim.SGD(of.named_parameters(), lr=0.1),))
    assert restorer(tmp_path / "run").restore(loaded) is not None


def test_what_keeps_no_state_of_each_parameter_is_not_sharded() -> None:
    with process_group():
        model = fully_shard(network())
        with pytest.raises(InvalidInput, match=r"^own is an optimizer \(LBFGS\) of sharded parameters"):
            Stateful(model, (), {"own": optim.LBFGS(model.parameters())})


def test_a_second_optimizer_of_the_same_sharded_parameters_comes_back(tmp_path: Path) -> None:
    with process_group():

        def made() -> Stateful:
            model = fully_shard(network())
            own = model.parameters()
            return Stateful(model, MAKERS["adamw"](model), {"own": optim.SGD(own, lr=0.1, momentum=0.9)})

        saved, loaded = made(), made()
        train(saved, 1)
        for one in saved.model.parameters():
            one.grad = torch.ones_like(one)
        saved.others["own"].step()
        save(tmp_path / "run", 1, saved)
        restorer(tmp_path / "run").restore(loaded)
        ours, theirs = (
            [kept["momentum_buffer"].full_tensor() for kept in one.others["own"].state.values()]
            for one in (saved, loaded)
        )
        assert len(ours) == len(theirs) == 4
        assert equal(ours, theirs)


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(5))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda of: (optim.LBFGS(of.parameters()),), r"LBFGS.* run\.restore\(model, lbfgs=optimizer\)"),
        (
            lambda of: (*halves(of), optim.SGD(of[1].parameters())),
            r"^1\.weight, 1\.bias: .* \(2 of them\) more than once",
        ),
        (
            lambda of: (optim.SGD([*of.parameters(), *Loss().parameters()]),),
            r"\(SGD\) has 1 parameters that are not the model's, of the shapes \(5,\): .*ModuleDict",
        ),
    ],
)
def test_states_without_a_place_are_refused_at_once(make: Make, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        stateful(make)


@pytest.mark.parametrize(
    ("optimizers", "others", "said"),
    [
        ((torch.nn.Identity(),), {}, r"given a Identity as an optimizer\. .* schedule=schedule"),
        ((), {"x": 3}, "x: given a int; allowed: an object with state_dict and load_state_dict"),
    ],
)
def test_what_has_no_state_is_refused_at_once(optimizers: Any, others: Any, said: str) -> None:
    """And not with the first save, whenever that is."""
    with pytest.raises(InvalidInput, match=rf"^run\.restore: {said}"):
        Stateful(network(), optimizers, others)


def test_what_is_of_no_parameter_is_refused(tmp_path: Path) -> None:
    what = stateful(MAKERS["not torch's"], steps=1)
    what.optimizers[0].state["seen"] = {"steps": 3}  # type: ignore[index]
    with pytest.raises(InvalidInput, match=r"\(Unknown\) keeps 'seen', which is the state of no parameter"):
        save(tmp_path / "run", 1, what)


@pytest.mark.parametrize("form", [lambda one: [one], lambda one: {0: one}, lambda one: {0.5: one}])
def test_what_names_do_not_tell_is_refused(form: Callable[[Any], Any], tmp_path: Path) -> None:
    def make(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
        return (NeedsGradients(of.parameters()),)

    saved, loaded = stateful(make, steps=1), stateful(make)
    for kept in saved.optimizers[0].state.values():
        kept["more"] = form(kept["exp_avg"])
    save(tmp_path / "run", 1, saved)
    with pytest.raises(InvalidInput, match="lists, or dicts with numbers"):
        restorer(tmp_path / "run").restore(loaded)
    assert not loaded.optimizers[0].state
    assert loaded.optimizers[0].param_groups[0]["lr"] == 1e-3


class First(NeedsGradients):
    """Keeps something else than another one with the same settings."""

    keeps = "first"

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one][self.keeps] = torch.zeros_like(one)


class Second(First):
    keeps = "second"


def test_what_another_class_keeps_is_refused(tmp_path: Path) -> None:
    """Settings of the same names do not tell."""
    save(tmp_path / "run", 1, stateful(lambda of: (First(of.parameters()),), steps=1))
    with pytest.raises(InvalidInput, match=r"the script has no optimizer\.state\.0\.bias\.first"):
        restorer(tmp_path / "run").restore(stateful(lambda of: (Second(of.parameters()),)))


def test_an_optimizer_with_fewer_settings_of_another_class_is_refused(tmp_path: Path) -> None:
    class Other(NeedsGradients):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters)
            self.defaults["own"] = 1.0
            for group in self.param_groups:
                group["own"] = 1.0

    save(tmp_path / "run", 1, stateful(MAKERS["adamw"], steps=2))
    with pytest.raises(InvalidInput, match=r"another class: the script's \(Other\) has the settings own\. "):
        restorer(tmp_path / "run").restore(stateful(lambda of: (Other(of.parameters()),)))
