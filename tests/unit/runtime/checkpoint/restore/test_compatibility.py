"""A checkpoint that is not of what the script has is refused before the first step, and nothing is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.saving import objects, restorer, save

optim = torch.optim


def of_dtype(
    dtype: torch.dtype, kind: Callable[..., torch.optim.Optimizer] = optim.AdamW, seed: int = 1
) -> Stateful:
    """After a step."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).to(dtype)
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.randn(8, 4, dtype=dtype)).square().sum().backward()
    optimizer.step()
    return Stateful(model, (optimizer,), {})


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def weights(what: Stateful) -> bytes:
    vector = torch.nn.utils.parameters_to_vector(what.model.parameters()).detach()
    return vector.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_of_another_dtype_is_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    """What it was trained to would be rounded, and the next save would have no more of it than that."""
    save(tmp_path / "run", 5, of_dtype(torch.float32))
    other, before = of_dtype(dtype, seed=2), files(tmp_path / "run")
    had = weights(other)
    said = rf"model\.0\.bias is {dtype} in the script and torch\.float32 in the checkpoint.* another URI"
    with pytest.raises(InvalidInput, match=said):
        restorer(tmp_path / "run").restore(other)
    assert (weights(other), files(tmp_path / "run")) == (had, before)


def test_an_optimizer_state_comes_back_in_the_dtype_that_it_had(tmp_path: Path) -> None:
    saved, other = of_dtype(torch.float32), of_dtype(torch.float32)
    save(tmp_path / "run", 5, saved)
    (state, *_) = other.optimizers[0].state.values()
    state["exp_avg"] = state["exp_avg"].to(torch.float16)
    restorer(tmp_path / "run").restore(other)
    (found, *_), (expected, *_) = (one.optimizers[0].state.values() for one in (other, saved))
    assert found["exp_avg"].dtype == torch.float32
    assert torch.equal(found["exp_avg"], expected["exp_avg"])


@pytest.mark.parametrize("kind", [optim.NAdam, optim.ASGD, optim.AdamW, partial(optim.SGD, momentum=0.9)])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_states_that_are_not_of_the_parameters_dtype_stay_what_they_are(
    tmp_path: Path, kind: Callable[..., torch.optim.Optimizer], fresh: bool, dtype: torch.dtype
) -> None:
    """torch itself gives them the parameter's when it loads them: a state as saved is another one after that."""
    saved = of_dtype(dtype, kind)
    for step in (5, 6):  # what was loaded is saved, and loaded again
        save(tmp_path / "run", step, saved)
        loaded = of_dtype(dtype, kind, seed=step)
        if fresh:
            loaded = replace(loaded, optimizers=(kind(loaded.model.parameters(), lr=0.1),))
            loaded.optimizers[0].zero_grad()
        assert restorer(tmp_path / "run").restore(loaded) is not None
        found, expected = (one.optimizers[0].state_dict()["state"] for one in (loaded, saved))
        for index, state in expected.items():
            for name, value in state.items():
                assert found[index][name].dtype == value.dtype, name
                assert torch.equal(found[index][name], value), name
        assert weights(loaded) == weights(saved)
        saved = loaded


def test_a_setting_of_an_optimizer_is_as_it_was_saved(tmp_path: Path) -> None:
    def with_rate(rate: torch.Tensor) -> Stateful:
        return of_dtype(torch.float32, lambda parameters, lr: optim.Adam(parameters, lr=rate, foreach=False))

    exact = torch.tensor(0.1, dtype=torch.float64)
    save(tmp_path / "run", 5, with_rate(exact))
    loaded = with_rate(torch.tensor(0.5, dtype=torch.float32))
    assert restorer(tmp_path / "run").restore(loaded) is not None
    (group,) = loaded.optimizers[0].param_groups
    assert (group["lr"].dtype, group["lr"].item()) == (exact.dtype, exact.item())


class History:
    """An object of a script's own, which begins with a tensor of another dtype than it has later."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.seen = torch.full((3,), 1 / 3).to(dtype)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_an_objects_tensors_come_back_in_the_dtype_they_had(tmp_path: Path) -> None:
    saved, loaded = History(torch.float64), History(torch.int32)
    save(tmp_path / "run", 5, replace(objects(1), others={"history": saved}))
    restorer(tmp_path / "run").restore(replace(objects(2), others={"history": loaded}))
    assert loaded.seen.dtype == torch.float64
    assert torch.equal(loaded.seen, saved.seen)


def test_a_module_beside_the_model_is_not_converted_either(tmp_path: Path) -> None:
    ema = torch.nn.Linear(4, 3)
    save(tmp_path / "run", 5, replace(objects(1), others={"ema": ema}))
    other = copy.deepcopy(ema).to(torch.bfloat16)
    with pytest.raises(InvalidInput, match=r"other\.ema\.tensors\./weight is torch\.bfloat16 in the script"):
        restorer(tmp_path / "run").restore(replace(objects(2), others={"ema": other}))
    assert torch.equal(other.weight, ema.weight.to(torch.bfloat16))


@pytest.mark.parametrize("source", ["run", "model.pt", "model.safetensors"])
def test_weights_are_not_converted_unasked(tmp_path: Path, source: str) -> None:
    saved = of_dtype(torch.float32)
    save(tmp_path / "run", 5, saved)
    torch.save(saved.model.state_dict(), tmp_path / "model.pt")
    save_file(saved.model.state_dict(), tmp_path / "model.safetensors")
    load: Any = elastic.load_model if source == "run" else elastic.load_weights
    other = of_dtype(torch.bfloat16, seed=2)
    had = weights(other)
    said = (
        r"model\.0\.bias is torch\.bfloat16 in the script and torch\.float32 in the checkpoint.*"
        r"convert the model after it is loaded.*model\.to\(torch\.bfloat16\)"
    )
    with pytest.raises(InvalidInput, match=said):
        load(str(tmp_path / source), other.model)
    assert weights(other) == had
    other.model.to(torch.float32)  # as it says
    load(str(tmp_path / source), other.model)
    assert weights(other) == weights(saved)


def test_an_object_that_was_saved_is_not_dropped_in_silence(tmp_path: Path) -> None:
    """The next checkpoint would not have it, and some saves later none would."""
    run, average = tmp_path / "run", History(torch.float32)
    save(run, 5, replace(objects(1), others={"history": average, "more.of it": History(torch.float32)}))
    other, before = replace(objects(2), others={"history": average}), files(run)
    had = weights(other)
    said = (
        r"checkpoint 5 of .* has more\.of it, which run\.restore is not given.* "
        r"Give it again, or drop it for good with run"
    )
    with pytest.raises(InvalidInput, match=said):
        restorer(run).restore(other)
    assert (weights(other), files(run)) == (had, before)


def test_an_object_is_left_for_good_where_none_is_given_for_it(tmp_path: Path) -> None:
    """By a script that says so with each start, whether the newest checkpoint still has it or not."""
    uri, saved = tmp_path / "run", replace(objects(1), others={"history": History(torch.float32)})
    save(uri, 5, saved)
    surroundings = RankEnvironment(0, 0, 1, str(uri), 2, 1, None, None)
    for step in (5, 6):
        loaded = objects(2)
        session = Session(surroundings, total_steps=None, backend=None, timeout=60)
        assert session.restore(loaded.model, *loaded.optimizers, history=None) == step
        assert weights(loaded) == weights(saved)
        save(uri, 6, replace(loaded, others={}))
