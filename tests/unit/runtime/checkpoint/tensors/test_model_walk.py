"""One look at a model finds what torch's own methods find, whatever has changed since the look before."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.checkpoint.tensors.model_walk import ModelWalk
from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of, weights_of
from tests.support.machine.threads import process_group


class OwnWay(torch.nn.Linear):
    """A module that saves in its own way."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}turned"] = self.weight.t()


class WithExtra(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return torch.arange(3)


class OwnNames(torch.nn.Linear):
    def named_parameters(self, *arguments: Any, **options: Any) -> Any:
        return (("renamed." + name, one) for name, one in super().named_parameters(*arguments, **options))


def linear() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def renamed(module: torch.nn.Module, state: dict[str, Any], prefix: str, _: object) -> None:
    if f"{prefix}weight" in state:
        state[f"{prefix}other"] = state.pop(f"{prefix}weight")


def no_bias(model: torch.nn.Sequential) -> None:
    model[0].bias = None


CHANGES: list[Callable[[torch.nn.Sequential], object]] = [
    lambda model: model.append(linear()),
    lambda model: model.append(torch.nn.BatchNorm1d(2)),
    lambda model: model.append(model[0]),  # a shared module
    lambda model: setattr(model[0], "weight", model[-1].weight),  # a shared parameter
    lambda model: setattr(model[0], "weight", torch.nn.Parameter(torch.randn(2, 2))),
    lambda model: setattr(model[0], "weight", torch.nn.Parameter(torch.randn(3, 2, dtype=torch.float64))),
    lambda model: setattr(model[0].weight, "data", torch.randn(5)),
    lambda model: model[0].register_buffer("kept", torch.ones(2)),
    lambda model: model[0].register_buffer("kept", torch.ones(2), persistent=False),
    lambda model: model[0].register_buffer("kept", None),
    no_bias,
    lambda model: model.__delitem__(-1) if len(model) > 2 else None,
    lambda model: model.insert(0, linear()),
    lambda model: model.append(OwnWay(2, 2)),
    lambda model: model.append(WithExtra(2, 2)),
    lambda model: model.append(OwnNames(2, 2)),
    lambda model: model.append(torch.compile(linear())),  # type: ignore[arg-type]
    lambda model: model.append(torch.nn.Sequential(linear(), linear())),
    lambda model: model.append(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))),
    lambda model: model[-1]._register_state_dict_hook(renamed) if hasattr(model[-1], "weight") else None,
    lambda model: setattr(model[0], "state_dict", lambda *arguments, **options: {"own": torch.ones(1)}),
    lambda model: setattr(model, "named_parameters", lambda: iter([("only", model[0].weight)])),
]


def check(model: torch.nn.Module) -> None:
    walk = ModelWalk(model)
    assert places(weights_of(model, walk=walk)) == places(weights_of(model))
    names, parameters = walk.named_parameters()
    found = [(name, id(one)) for name, one in zip(names, parameters, strict=True)]
    assert found == [(name, id(one)) for name, one in model.named_parameters()]


def places(weights: dict[str, Any]) -> list[Any]:
    own = {name: one._local_tensor if hasattr(one, "_local_tensor") else one for name, one in weights.items()}
    plain = {name: one for name, one in own.items() if "extra" not in name}
    return [(name, one.dtype, one.shape, one.stride(), one.data_ptr()) for name, one in plain.items()]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(range(len(CHANGES))), max_size=6))
def test_a_look_finds_what_torch_finds(changes: list[int]) -> None:
    model = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(2))
    check(model)
    check(model)
    for number in changes:
        with contextlib.suppress(
            AttributeError, TypeError
        ):  # the first or last module is of another kind by now
            CHANGES[number](model)
        check(model)


def test_wrappers_leave_no_trace_in_names() -> None:
    with process_group():
        inner = torch.nn.Sequential(linear(), torch.nn.BatchNorm1d(2))
        wrapped = DistributedDataParallel(torch.compile(inner))
        plain = [*weights_of(inner)]
        for _ in range(3):
            walk = ModelWalk(wrapped)
            assert [*weights_of(wrapped, walk=walk)] == plain
            assert [*names_of(wrapped, walk).values()] == [name for name, _ in inner.named_parameters()]


def test_a_sharded_model_is_found_as_its_optimizer_has_it() -> None:
    with process_group():
        model = torch.nn.Sequential(linear(), linear())
        for each in (*model, model):
            fully_shard(each)
        own = [*model.parameters()]
        for _ in range(3):
            model(torch.ones(1, 2))  # leaves the root unsharded
            walk = ModelWalk(model)
            assert [id(one) for one in names_of(model, walk)] == [*map(id, own)]
            assert places(weights_of(model, walk=walk)) == places(weights_of(model))


def test_torch_is_asked_for_a_state_dict_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    model = torch.nn.Sequential(linear(), linear())
    asked = torch.nn.Module.state_dict

    def counting(self: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
        calls.append(self)
        return asked(self, *arguments, **options)

    model[0].register_forward_hook(lambda *_: None)  # hooks that are not for saving do not matter
    monkeypatch.setattr(torch.nn.Module, "state_dict", counting)
    for number in range(3):
        assert [*weights_of(model, walk=ModelWalk(model))] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert len(calls) == 3, number


def test_nothing_keeps_a_model_alive() -> None:
    model = torch.nn.Sequential(linear())
    check(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
