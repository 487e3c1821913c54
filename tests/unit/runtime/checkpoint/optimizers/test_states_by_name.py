"""What optimizers keep comes back to the parameters that it was of, and nobody makes a step to be saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import optim
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.optimizers import states_by_name
from airflow_elastic.runtime.checkpoint.optimizers.states_by_name import states_of
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.optimizers import (
    MAKERS,
    Make,
    NeedsGradients,
    equal,
    kept,
    network,
    stateful,
    train,
)
from tests.support.training.saving import SavingWorker, restorer, save


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

    worker = SavingWorker(str(tmp_path))
    assert equal(trained(worker.saver.announce), trained(lambda _: None))


def test_memory_is_provided_for_what_an_optimizer_will_keep(tmp_path: Path) -> None:
    worker, what = SavingWorker(str(tmp_path)), stateful(MAKERS["adamw"])
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
            InvalidInput, match=r"of the shape \(3,\) for a sharded parameter of the shape \(3, 4\)"
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
        patched.setattr(states_by_name, "_CLASSES", "none")  # as if it had been saved before classes were
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
