"""What optimizers keep comes back to the parameters that it was of, and nobody makes a step to be saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime import optimizer_states
from airflow_elastic.runtime.optimizer_states import states_of
from airflow_elastic.runtime.saving import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.saving import Worker, restorer, save
from tests.support.threads import process_group

optim = torch.optim
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


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_it_is_what_torch_makes_of_it(make: Make) -> None:
    what = stateful(make, steps=2)
    found = states_of(what.model, what.optimizers)
    assert len(found.pop("classes")) == len(found["param_groups"])
    assert equal(found, get_optimizer_state_dict(what.model, what.optimizers))


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_training_goes_on_as_if_nothing_had_been(make: Make, steps: int, tmp_path: Path) -> None:
    """Saved before the first step, too."""
    saved, loaded = stateful(make, steps), stateful(make)
    save(tmp_path / "run", 1, saved)
    assert restorer(tmp_path / "run").restore(loaded) is not None
    assert equal(kept(loaded), kept(saved))
    for one in (saved, loaded):
        train(one, 2, start=steps)
    assert equal(kept(loaded), kept(saved))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_nobody_makes_a_step_to_be_saved(make: Make, tmp_path: Path) -> None:
    what, undisturbed = stateful(make), stateful(make)
    worker = save(tmp_path / "run", 1, what)
    worker.saver.check_memory(what)
    worker.saver.announce(what)
    assert equal(kept(what), kept(undisturbed))


def test_a_first_step_that_a_scaler_leaves_out_counts_for_nobody(tmp_path: Path) -> None:
    def trained(told: Callable[[Stateful], object]) -> Any:
        what = stateful(MAKERS["adamw"])
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
        for _ in range(3):
            scaler.scale(what.model(torch.ones(2, 4)).pow(2).sum()).backward()
            scaler.step(what.optimizers[0])
            scaler.update()
            what.optimizers[0].zero_grad()
            told(what)
        assert what.optimizers[0].state_dict()["state"][0]["step"] == 2, "the first step was left out"
        return kept(what)

    worker = Worker(str(tmp_path))
    assert equal(trained(worker.saver.announce), trained(lambda _: None))


def test_memory_is_provided_for_what_an_optimizer_will_keep(tmp_path: Path) -> None:
    worker, what = Worker(str(tmp_path)), stateful(MAKERS["adamw"])
    worker.saver.announce(what)
    worker.persister.provide()
    provided = worker.stage.have_bytes
    train(what, 1)
    worker.saver.announce(what)
    worker.persister.provide()
    assert worker.stage.have_bytes == provided


@pytest.mark.parametrize("wrap", [fully_shard, torch.compile])
def test_what_wraps_a_model_is_in_nobodys_way(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    """Nor is that FSDP2 leaves its root unsharded after a forward pass: an evaluation before the training, e.g."""
    with process_group():

        def wrapped() -> Stateful:
            model = wrap(network())
            made = optim.AdamW(model.parameters(), lr=0.1)
            if wrap is fully_shard:
                with torch.no_grad():
                    model(torch.ones(2, 4))
            return Stateful(model, (made,), {})

        saved, loaded, plain = wrapped(), wrapped(), stateful(MAKERS["adamw"], steps=1)
        assert states_of(saved.model, saved.optimizers)["param_groups"][0]["params"] == [
            "0.weight",
            "0.bias",
            "1.weight",
            "1.bias",
        ]
        save(tmp_path / "run", 1, plain)
        restorer(tmp_path / "run").restore(loaded)
        found = get_optimizer_state_dict(loaded.model, loaded.optimizers)["state"]["1.weight"]["exp_avg"]
        whole = found.full_tensor() if isinstance(found, DTensor) else found
        assert torch.equal(whole, plain.optimizers[0].state[plain.model[1].weight]["exp_avg"])


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
        (in_groups(4), "the script's have 1 groups .* saved 2"),
        (in_groups(1, 1, 2), "the script's have 3 groups .* saved 2"),
        (in_groups(3, 1), r"of the group of 0\.bias, the checkpoint's is without 1\.weight"),
        (in_groups(1, 3), r"of the group of 0\.weight, the checkpoint's has 0\.bias, too"),
    ],
)
def test_other_groups_are_refused(theirs: Make, said: str, tmp_path: Path) -> None:
    """Whose settings would they be?"""
    save(tmp_path / "run", 1, stateful(in_groups(2, 2), steps=1))
    with pytest.raises(InvalidInput, match=rf"^checkpoint 1 of .*{said}.*Go on with those"):
        restorer(tmp_path / "run").restore(stateful(theirs))


def test_a_checkpoint_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    """What room was made for would be trained on."""
    saved, loaded = Stateful(network(), (), {}), stateful(MAKERS["adamw"])
    save(tmp_path / "run", 1, saved)
    with pytest.raises(InvalidInput, match=r"the script's have 1 groups .* saved 0"):
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


def test_a_gradient_is_in_nobodys_way(tmp_path: Path) -> None:
    for make in (MAKERS["adamw"], MAKERS["not torch's"]):
        uri = tmp_path / make.__code__.co_name / str(id(make))
        saved, loaded = stateful(make, steps=1), stateful(make)
        save(uri, 1, saved)
        loaded.model(torch.ones(2, 4)).sum().backward()
        gradients = [one.grad for one in loaded.model.parameters()]
        restorer(uri).restore(loaded)
        assert equal(kept(loaded), kept(saved))
        assert all(
            one.grad is before for one, before in zip(loaded.model.parameters(), gradients, strict=True)
        )


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


def test_what_is_sharded_is_not_given_by_name() -> None:
    with process_group():
        model = fully_shard(network())
        with pytest.raises(
            InvalidInput, match=r"^own is an optimizer \(SGD\) of parameters that are sharded"
        ):
            Stateful(model, (), {"own": optim.SGD(model.parameters())})


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
        ((torch.nn.Identity(),), {}, r"given a Identity where optimizers stand; .* schedule=schedule"),
        ((), {"x": 3}, "x: given a int; allowed: what has state_dict and load_state_dict"),
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


def test_an_optimizer_with_a_history_is_given_by_name(tmp_path: Path) -> None:
    def fresh() -> Stateful:
        model = network()
        return Stateful(model, (), {"lbfgs": optim.LBFGS(model.parameters(), history_size=3)})

    def step(what: Stateful) -> None:
        (lbfgs,) = what.stepping

        def closure() -> torch.Tensor:
            lbfgs.zero_grad()
            loss = (what.model(torch.arange(8.0).reshape(2, 4)) - 1).pow(2).sum()
            loss.backward()
            return loss

        lbfgs.step(closure)  # type: ignore[arg-type]

    saved, loaded = fresh(), fresh()
    step(saved)
    save(tmp_path / "run", 1, saved)
    assert restorer(tmp_path / "run").restore(loaded) is not None
    for one in (saved, loaded):
        step(one)
    assert equal(*(one.others["lbfgs"].state_dict() for one in (saved, loaded)))
    assert equal(saved.model.state_dict(), loaded.model.state_dict())


class NeedsGradients(Unknown):
    def step(self, closure: Any = None) -> Any:
        if any(
            one.grad is None or not one.grad.any() for group in self.param_groups for one in group["params"]
        ):
            raise ValueError("no gradients")
        return super().step(closure)


class Lazy(optim.SGD):
    """Has entries for what it keeps nothing of yet, as schedule-free optimizers have where they are told to train."""

    def train(self) -> None:
        for group in self.param_groups:
            assert not any(self.state[one] for one in group["params"])


class Growing(optim.SGD):
    """Keeps a list that grows, and something else from its second step on; what it keeps becomes a tensor."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                kept = self.state[one]
                kept.setdefault("history", []).append(one.grad.clone())
                kept["norm"] = torch.stack([each.norm() for each in kept["history"]]) if "norm" in kept else 0
                if len(kept["history"]) > 1:
                    kept["deep"] = {"slow": {"mean": kept["history"][-1] / 2}, "fast": one.detach().sum()}
                    one.data += 1e-3 * (kept["deep"]["slow"]["mean"] + kept["norm"].mean().clamp(0, 1))


class ByRate(optim.SGD):
    """Keeps something for each of some rates, under names that have dots."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                kept = self.state[one].setdefault("by rate", {0.0: {}, 0.5: {}, 5: {}})
                for rate in kept:
                    kept[rate] = {"mean": one.detach() * rate}


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("kind", [NeedsGradients, Lazy, Growing, ByRate])
def test_what_no_step_makes_room_for_comes_back(kind: Any, steps: int, tmp_path: Path) -> None:
    """The checkpoint says what there is, and the optimizer need not."""

    def make(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
        made = kind(of.parameters(), **({} if kind is NeedsGradients else {"momentum": 0.5}))
        if kind is Lazy:
            made.train()
        return (made,)

    saved, loaded = stateful(make, steps), stateful(make)
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded), kept(saved))
    for one in (saved, loaded):
        train(one, 2, start=steps)
    assert equal(kept(loaded), kept(saved))


def test_an_optimizer_of_sparse_gradients_comes_back(tmp_path: Path) -> None:
    def table() -> Stateful:
        made = torch.nn.Embedding(5, 2, sparse=True)
        return Stateful(made, (optim.SparseAdam(made.parameters()),), {})

    saved, loaded = table(), table()
    saved.model(torch.tensor([1, 3])).sum().backward()
    saved.optimizers[0].step()
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded), kept(saved))


def test_what_an_optimizer_keeps_comes_back_in_its_order(tmp_path: Path) -> None:
    saved, loaded = stateful(MAKERS["two"], steps=1), stateful(MAKERS["two"])
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    orders = [[[*each] for one in what.optimizers for each in one.state.values()] for what in (saved, loaded)]
    assert orders[0] == orders[1]


@pytest.mark.parametrize("form", [lambda one: [one], lambda one: {0: one}, lambda one: {0.5: one}])
def test_what_names_do_not_tell_is_refused(form: Callable[[Any], Any], tmp_path: Path) -> None:
    def make(of: torch.nn.Sequential) -> tuple[optim.Optimizer, ...]:
        return (NeedsGradients(of.parameters()),)

    saved, loaded = stateful(make, steps=1), stateful(make)
    for kept in saved.optimizers[0].state.values():
        kept["more"] = form(kept["exp_avg"])
    save(tmp_path / "run", 1, saved)
    with pytest.raises(InvalidInput, match="lists, or values by numbers"):
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


def test_of_a_sharded_parameter_only_what_is_like_it_gets_room(tmp_path: Path) -> None:
    def wrapped() -> Stateful:
        model = fully_shard(network())
        return Stateful(model, (NeedsGradients(model.parameters()),), {})

    with process_group():
        saved, loaded = wrapped(), wrapped()
        saved.model(torch.ones(2, 4)).sum().backward()
        saved.optimizers[0].step()
        for one, kept in saved.optimizers[0].state.items():
            kept["row"] = one.detach().mean(-1)
        save(tmp_path / "run", 1, saved)
        with pytest.raises(
            InvalidInput, match=r"of the shape \(3,\) for a parameter of \(3, 4\) that is sharded"
        ):
            restorer(tmp_path / "run").restore(loaded)


def test_momentum_that_begins_later_comes_back(tmp_path: Path) -> None:
    saved, loaded = (stateful(lambda of: (optim.SGD(of.parameters(), lr=0.1),)) for _ in range(2))
    for group in saved.optimizers[0].param_groups:
        group["momentum"] = 0.9
    train(saved, 2)
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded), kept(saved))


def test_a_scripts_own_word_in_a_group_is_no_setting_of_a_class(tmp_path: Path) -> None:
    def named(word: str) -> Make:
        return lambda of: (optim.AdamW([{"params": [*of.parameters()], word: "decay"}]),)

    saved, loaded = stateful(named("name"), steps=1), stateful(named("label"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(optimizer_states, "_CLASSES", "none")  # as if it had been saved before classes were
        save(tmp_path / "run", 1, saved)
        restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded)[0][0]["state"], kept(saved)[0][0]["state"])


class Late(optim.SGD):
    """Has a list from its first step on, in which something comes with the second."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                kept = self.state[one]
                if "history" in kept:
                    kept["history"].append(one.detach().clone())
                else:
                    kept["history"] = []


def test_a_list_that_was_empty_at_first_comes_back(tmp_path: Path) -> None:
    saved, loaded = (stateful(lambda of: (Late(of.parameters(), momentum=0.5),)) for _ in range(2))
    train(saved, 3)
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded), kept(saved))


def test_a_faster_optimizer_of_the_same_kind_may_take_its_place(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, saved := stateful(MAKERS["adamw"], steps=2))
    loaded = stateful(MAKERS["not torch's"])
    restorer(tmp_path / "run").restore(loaded)
    assert equal(kept(loaded), kept(saved))


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


class Wrapper(optim.Optimizer):
    """Has all that it needs from another one, as wrappers have that do not call `Optimizer.__init__`."""

    def __init__(self, inner: optim.Optimizer) -> None:
        self.inner, self.param_groups = inner, inner.param_groups
        self.state_dict, self.step = inner.state_dict, inner.step  # type: ignore[method-assign]
        self.load_state_dict = inner.load_state_dict  # type: ignore[method-assign]
        self.zero_grad = inner.zero_grad  # type: ignore[method-assign]

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state


@pytest.mark.parametrize("named", [False, True])
def test_a_wrapper_that_has_no_settings_of_its_own_comes_back(named: bool, tmp_path: Path) -> None:
    def wrapped(steps: int) -> Stateful:
        what = stateful(lambda of: (Wrapper(optim.AdamW(of.parameters())),), steps)
        return Stateful(what.model, (), {"own": what.optimizers[0]}) if named else what

    saved, loaded = wrapped(2), wrapped(0)
    save(tmp_path / "run", 1, saved)
    restorer(tmp_path / "run").restore(loaded)
    assert equal(loaded.stepping[0].state_dict(), saved.stepping[0].state_dict())


def test_what_an_optimizer_keeps_beside_its_states_comes_by_name_alone(tmp_path: Path) -> None:
    """Else its averager would have begun anew, in silence."""

    def averaged(of: Any) -> optim.Optimizer:
        return PostLocalSGDOptimizer(optim.AdamW(of.parameters()), PeriodicModelAverager(4))

    with process_group():
        with pytest.raises(
            InvalidInput, match=r"\(PostLocalSGDOptimizer\) keeps 'step', which is the state of no"
        ):
            save(tmp_path / "run", 1, stateful(lambda of: (averaged(of),)))
        saved, loaded = ((of := stateful(lambda _: ()).model, averaged(of)) for _ in range(2))
        saved[1].averager.step = 7
        save(tmp_path / "run", 1, Stateful(saved[0], (), {"own": saved[1]}))
        restorer(tmp_path / "run").restore(Stateful(loaded[0], (), {"own": loaded[1]}))
    assert loaded[1].averager.step == 7
