"""A model comes back through whatever it is loaded by, wherever its tensors are; another one is refused."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.format.tensor_split import split_tensors
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.checkpoint.tensors import in_place
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.saving import network, objects, restorer, same, save, trained


class OfItsOwn(torch.nn.Linear):
    """Loads itself."""

    asked = 0

    def _load_from_state_dict(self, *args: Any) -> None:
        self.asked += 1
        super()._load_from_state_dict(*args)


class AsAWhole(torch.nn.Sequential):
    """The same, from outside."""

    asked = 0

    def load_state_dict(self, *args: Any, **more: Any) -> Any:
        self.asked += 1
        return super().load_state_dict(*args, **more)


def _ema(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    state[f"{prefix}weight"] = module.ema


def told(how: str) -> tuple[torch.nn.Module, list[str]]:
    """A model that has, in one of these ways, a way of its own to be loaded; and where it says that it was asked."""
    asked: list[str] = []
    inner = OfItsOwn(3, 3) if how == "override" else torch.nn.Linear(3, 3)
    model = (AsAWhole if how == "whole" else torch.nn.Sequential)(inner)
    if how == "pre":
        inner.register_load_state_dict_pre_hook(lambda *_: asked.append(how))
    if how == "post":
        inner.register_load_state_dict_post_hook(lambda *_: asked.append(how))
    if how == "of one object":
        load = model.load_state_dict
        model.load_state_dict = lambda *args, **more: (asked.append(how), load(*args, **more))[1]  # type: ignore[method-assign]
    if how == "saved otherwise":
        inner.register_buffer("ema", torch.ones(3, 3), persistent=False)
        inner.register_state_dict_post_hook(_ema)
    return model, asked


@pytest.mark.parametrize(
    ("how", "sharded"),
    [
        *product(("override", "whole", "pre", "post", "of one object"), (False, True)),
        ("saved otherwise", False),
    ],
)
def test_modules_that_see_to_loading_are_asked(tmp_path: Path, how: str, sharded: bool) -> None:
    """Those that do not find in themselves what was read."""
    model, asked = told(how)
    before = copy.deepcopy(model.state_dict())
    with process_group() if sharded else nullcontext():
        if sharded:
            fully_shard(model)
        save(tmp_path, 1, trained(model))
        for tensor in model.parameters():
            torch.nn.init.zeros_(tensor)
        restorer(tmp_path).restore(trained(model))
        parameters = {name: whole(one) for name, one in model.named_parameters()}
        assert all(torch.equal(parameters[name], before[name]) for name in before)
    assert asked or getattr(model[0], "asked", 0) or getattr(model, "asked", how == "saved otherwise")  # type: ignore[index]


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def test_what_is_read_into_a_plain_model_is_not_copied_onto_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, objects(1))
    monkeypatch.delattr(in_place, "set_weights")
    loaded = objects(2)
    restorer(tmp_path).restore(loaded)
    assert same(loaded, objects(1))


def test_nor_into_a_sharded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose root has whole parameters after a forward pass, which are not those that are trained."""
    monkeypatch.delattr(in_place, "set_weights")
    with process_group():
        saved, loaded = (trained(fully_shard(torch.nn.Linear(3, 3))) for _ in range(2))
        save(tmp_path, 1, saved)
        with torch.no_grad():
            loaded.model(torch.ones(1, 3))
        restorer(tmp_path).restore(loaded)
        assert torch.equal(saved.model(torch.eye(3)), loaded.model(torch.eye(3)))


def test_parameters_that_were_put_in_place_of_sharded_ones_are_those_that_are_trained(tmp_path: Path) -> None:
    """Though fully_shard has used the former ones already."""
    with process_group():
        saved, loaded = (trained(fully_shard(torch.nn.Sequential(torch.nn.Linear(3, 3)))) for _ in range(2))
        save(tmp_path, 1, saved)
        loaded.model(torch.ones(1, 3))
        loaded.model.reshard()
        layer: Any = loaded.model[0]  # type: ignore[index]
        layer.weight = torch.nn.Parameter(torch.zeros_like(layer.weight))
        loaded = trained(loaded.model)
        restorer(tmp_path).restore(loaded)
        assert torch.equal(saved.model(torch.eye(3)), loaded.model(torch.eye(3)))


def test_a_buffer_without_memory_of_its_own_is_in_nobodys_way(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("adjacent", torch.eye(2).to_sparse(), persistent=False)
    save(tmp_path, 1, trained(model))
    assert restorer(tmp_path).restore(trained(model)) is not None


def test_a_model_without_memory_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, trained(torch.nn.Linear(2, 2)))
    with pytest.raises(InvalidInput, match=r"model\.\w+ is on the meta device"):
        restorer(tmp_path).restore(trained(torch.nn.Linear(2, 2, device="meta")))


def test_a_model_without_an_optimizer_is_restored(tmp_path: Path) -> None:
    saved, loaded = (replace(objects(seed), optimizers=(), others={}) for seed in (1, 2))
    save(tmp_path, 7, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    vectors = [torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in (saved, loaded)]
    assert torch.equal(*vectors)


def test_a_module_among_the_objects_keeps_its_tensors_apart(tmp_path: Path) -> None:
    average = torch.optim.swa_utils.AveragedModel(objects(1).model)
    rest, tensors = split_tensors(average.state_dict())
    assert len(tensors) == len(average.state_dict())
    assert not any(torch.is_tensor(value) for value in rest.value.values())
    save(tmp_path, 5, replace(objects(1), others={"average": average}))
    other = torch.optim.swa_utils.AveragedModel(objects(2).model)
    restorer(tmp_path).restore(replace(objects(3), others={"average": other}))
    assert all(torch.equal(*pair) for pair in zip(average.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (network(3), r"the script has no model\.1\.bias"),
        (network(3, 4), r"model\.1\.bias is \(4,\) in the script and \(5,\) in the checkpoint"),
        (network(3, 5, 6), r"the checkpoint has no model\.2\.bias"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_and_nothing_changed(
    tmp_path: Path, other: Stateful, said: str
) -> None:
    save(tmp_path, 5, network(3, 5))
    before = [parameter.clone() for parameter in other.model.parameters()]
    with pytest.raises(InvalidInput, match=rf"checkpoint 5 of {tmp_path} is of another model.*: .*{said}"):
        restorer(tmp_path).restore(other)
    assert all(torch.equal(*pair) for pair in zip(before, other.model.parameters(), strict=True))


class Partly(torch.nn.Module):
    """A model of which one layer is not used in its first steps, so that the optimizer has no state for it."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.later = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def train_on(self, optimizer: torch.optim.Optimizer, *, all_of_it: bool) -> None:
        out = self.used(torch.ones(2, 4))
        (self.later(out) if all_of_it else out).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def test_a_parameter_that_was_not_used_yet_comes_back_without_a_state(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(1)
        model = Partly()
        made.append(Stateful(model, (torch.optim.AdamW(model.parameters(), lr=0.1),), {}))
    saved, loaded = made
    saved.model.train_on(saved.optimizers[0], all_of_it=False)  # type: ignore[operator]
    save(tmp_path, 5, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    for one in made:
        assert len(one.optimizers[0].state) == 2, "of the layer that was used, its weight and its bias"
        one.model.train_on(one.optimizers[0], all_of_it=True)  # type: ignore[operator]
    vectors = [torch.nn.utils.parameters_to_vector(one.model.parameters()) for one in made]
    assert torch.equal(*vectors)


def _step_scaled(what: Stateful, data: torch.Tensor) -> None:
    scaler, (optimizer,) = what.others["scaler"], what.optimizers
    scaler.scale(what.model(data).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def test_a_gradient_scaler_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Of a scale that has grown and shrunk, in the middle of the steps after which it grows again."""

    def scaled(seed: int) -> Stateful:
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1000.0, growth_factor=1.7, growth_interval=3)
        return Stateful(model, (optimizer,), {"scaler": scaler})

    def told(what: Stateful) -> tuple[Any, bytes]:
        weights = torch.nn.utils.parameters_to_vector(what.model.parameters()).detach()
        return what.others["scaler"].state_dict(), weights.numpy().tobytes()

    saved, loaded = scaled(1), scaled(2)
    good, overflow = torch.randn(2, 4), torch.full((2, 4), torch.inf)
    for data in (good, good, good, overflow, good, good):
        _step_scaled(saved, data)
    scale, waited = saved.others["scaler"].get_scale(), saved.others["scaler"]._get_growth_tracker()
    assert (scale, waited) == (torch.tensor(1000 * 1.7).item() * 0.5, 2)
    save(tmp_path, 6, saved)
    assert restorer(tmp_path).restore(loaded) is not None
    assert told(loaded) == told(saved)
    for data in (good, overflow, good):
        for what in (saved, loaded):
            _step_scaled(what, data)
        assert told(loaded) == told(saved)
    assert saved.others["scaler"].get_scale() != scale


class Turned(torch.nn.Module):
    """Tensors that torch conjugates, or negates, only when they are read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3, dtype=torch.complex64).conj())
        self.register_buffer("below", torch.randn(4, dtype=torch.complex64).conj().imag)


def test_what_is_conjugated_when_it_is_read_comes_back(tmp_path: Path) -> None:
    saved, loaded = trained(Turned()), trained(Turned())
    assert saved.model.weight.is_conj()  # type: ignore[operator]
    assert saved.model.below.is_neg()  # type: ignore[operator]
    save(tmp_path, 1, saved)
    restorer(tmp_path).restore(loaded)
    there, here = saved.model.state_dict(), loaded.model.state_dict()
    assert all(torch.equal(there[name], here[name]) for name in there)


class OfOld(torch.nn.Sequential):
    """Tells its parameters as before torch 2.0."""

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Any:  # type: ignore[override]
        return super().named_parameters(prefix, recurse)


def test_a_model_that_tells_its_parameters_in_its_own_way_comes_back(tmp_path: Path) -> None:
    saved, loaded = (trained(OfOld(torch.nn.Linear(2, 2))) for _ in range(2))
    save(tmp_path, 1, saved)
    restorer(tmp_path).restore(loaded)
    assert torch.equal(saved.model[0].weight, loaded.model[0].weight)  # type: ignore[index]
