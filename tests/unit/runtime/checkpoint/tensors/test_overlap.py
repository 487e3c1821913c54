"""Buffers of which several numbers lie in the same memory (`expand`) come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from airflow_elastic.runtime.checkpoint.restore.load_model import load_model
from airflow_elastic.runtime.checkpoint.restore.weights import export_weights, load_weights
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from tests.support.training.saving import restorer, save


class Blur(nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.line = nn.Linear(2, 2)
        self.register_buffer("kernel", (number * torch.arange(1.0, 4)).view(1, 1, 3).expand(5, 2, 3))
        self.register_buffer("row", number * torch.ones(1, 3))
        self.register_buffer("rows", self.row.expand(4, 3))


def blur(number: float) -> Any:
    net = nn.Sequential(Blur(number), nn.Linear(2, 2))
    net[1].register_buffer("again", net[0].kernel)
    return net


def state(model: nn.Module) -> list[torch.Tensor]:
    return [one.clone() for one in model.state_dict().values()]


def alike(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, state(one), state(other)))


def test_they_come_back_in_the_first_model_and_in_further_ones(tmp_path: Path) -> None:
    """Of others, too: what an object keeps may be such a tensor."""
    one = Stateful(blur(2), (), {"teacher": blur(3)})
    save(tmp_path / "run", 1, one)
    for hooked in (False, True):
        other = Stateful(blur(7), (), {"teacher": blur(8)})
        if hooked:  # it is loaded as torch does that
            other.model.register_load_state_dict_post_hook(lambda module, keys: None)
        kernel = other.model[0].kernel  # type: ignore[index, union-attr]
        restorer(tmp_path / "run").restore(other)
        assert alike(other.model, one.model)
        assert alike(other.others["teacher"], one.others["teacher"])
        for net in (other.model, other.others["teacher"]):
            assert net[0].kernel.stride() == (0, 0, 1)  # type: ignore[index, union-attr]
            assert net[1].again is net[0].kernel  # type: ignore[index, union-attr]
            net[0].row.zero_()  # type: ignore[index, union-attr]
            assert not net[0].rows.any()  # type: ignore[index, union-attr]
        assert other.model[0].kernel is kernel  # type: ignore[index, union-attr]


def test_where_the_numbers_differ_they_have_memory_each(tmp_path: Path) -> None:
    one = blur(2)
    one[0].kernel = one[1].again = torch.arange(30.0).view(5, 2, 3)
    one[0].rows = one[0].rows * 2
    save(tmp_path / "run", 1, Stateful(one, (), {}))
    other = blur(7)
    restorer(tmp_path / "run").restore(Stateful(other, (), {}))
    assert torch.equal(other[0].kernel, one[0].kernel)
    assert torch.equal(other[0].rows, one[0].rows)
    assert torch.equal(other[0].row, one[0].row)


def test_they_are_read_from_files(tmp_path: Path) -> None:
    one = blur(2)
    save(tmp_path / "run", 1, Stateful(one, (), {}))
    other = blur(7)
    load_model(str(tmp_path / "run"), other)
    assert alike(other, one)
    export_weights(str(tmp_path / "run"), tmp_path / "model.pt")
    other = blur(7)
    load_weights(tmp_path / "model.pt", other)
    assert alike(other, one)


class Averages(nn.Module):
    """Has a state dict of a form of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.mean, self.count = nn.Linear(4, 4), seed

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"mean": self.mean.state_dict(), "count": self.count}

    def load_state_dict(self, kept: Any) -> None:  # type: ignore[override]
        self.mean.load_state_dict(kept["mean"])
        self.count = kept["count"]


class Buckets(nn.Module):
    """Has numbers for keys."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.kept = {0: torch.full((3,), float(seed)), 1: torch.ones(3)}

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return dict(self.kept)

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:  # type: ignore[override]
        self.kept = dict(state_dict)


def hooked(seed: int) -> Any:
    """Its state dict has numbers for keys by a hook."""
    net = nn.Linear(1, 1)
    net.weight.data.fill_(seed)

    def after(module: Any, state: Any, prefix: str, metadata: Any) -> Any:
        kept = [*state.values()]
        state.clear()
        state.update(enumerate(kept))

    def before(module: Any, state: Any, *args: Any) -> None:
        kept = [state.pop(at) for at in (0, 1)]
        state.update(zip(("weight", "bias"), kept, strict=True))

    net._register_state_dict_hook(after)
    net.register_load_state_dict_pre_hook(before)
    return net


@pytest.mark.parametrize("made", [Averages, Buckets, hooked])
def test_a_module_that_is_kept_in_its_own_way_comes_back_so(made: Any, tmp_path: Path) -> None:
    one, other = made(3), made(5)
    save(tmp_path / "run", 1, Stateful(nn.Linear(2, 2), (), {"own": one}))
    restorer(tmp_path / "run").restore(Stateful(nn.Linear(2, 2), (), {"own": other}))
    assert str(other.state_dict()) == str(one.state_dict())


def test_a_first_model_may_name_what_it_loads_otherwise(tmp_path: Path) -> None:
    class Own(nn.Linear):
        def load_state_dict(self, kept: Any) -> Any:  # type: ignore[override]
            return super().load_state_dict(kept)

    one, other = Own(2, 2), Own(2, 2)
    save(tmp_path / "run", 1, Stateful(one, (), {}))
    restorer(tmp_path / "run").restore(Stateful(other, (), {}))
    assert alike(one, other)
