"""A model comes back whatever it is wrapped in, and however its modules tell of what they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as collectives
from torch.distributed.checkpoint.state_dict import _patch_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrizations import weight_norm

from airflow_elastic.runtime.checkpoint.restore.load_model import load_model
from airflow_elastic.runtime.checkpoint.restore.weights import load_weights
from airflow_elastic.runtime.checkpoint.save.repeated_layout import RepeatedLayout
from airflow_elastic.runtime.checkpoint.save.save import Saver
from airflow_elastic.runtime.checkpoint.save.staging import RankPosition
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage
from airflow_elastic.runtime.collectives.process_group import Collectives
from tests.support.machine.threads import process_group
from tests.support.runs.fake_ranks import as_ranks
from tests.support.training.saving import SavingWorker, restorer, save, trained


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """What it has in it, and what it tells of that."""
    # Of its class: torch's patch does not know of other names.
    told = {
        f"told {name}": one for name, one in type(model).state_dict(model).items() if torch.is_tensor(one)
    }
    return {**dict(model.named_parameters()), **dict(model.named_buffers()), **told}


def same(one: Any, other: Any) -> bool:
    there, here = state_of(one), state_of(other)
    return there.keys() == here.keys() and all(torch.equal(there[name], here[name]) for name in there)


def comes_back(folder: Path, saved: Any, loaded: Any) -> bool:
    with torch.no_grad():
        for tensor in saved.buffers():
            tensor.fill_(5.0)
    assert not same(saved, loaded)
    save(folder, 1, trained(saved))
    restorer(folder).restore(trained(loaded))
    return same(saved, loaded)


class Within(torch.nn.Linear):
    """Its state has its tensors below a name that nothing else has, and one that is in no other place."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("seen", torch.zeros(3))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, f"{prefix}core.", keep_vars)
        destination[f"{prefix}most"] = self.weight.detach().abs().max()

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        mine = {f"{prefix}{name}": state.pop(f"{prefix}core.{name}") for name in ("weight", "bias", "seen")}
        state.pop(f"{prefix}most")
        super()._load_from_state_dict({**state, **mine}, prefix, *others)


def test_weights_by_other_names_are_compared_among_ranks_and_nothing_else_is(tmp_path: Path) -> None:
    plan = SavingWorker(str(tmp_path)).saver._plan(trained(torch.nn.Sequential(Within())))
    assert plan.alike.keys() == {"model.0.core.weight", "model.0.core.bias"}


class OfWhatItIsAround(DistributedDataParallel):
    """Saved without the name of the wrapper, as scripts like it."""

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return self.module.state_dict(*args, **more)

    def load_state_dict(self, *args: Any, **more: Any) -> Any:
        return self.module.load_state_dict(*args, **more)


class WithMore(DistributedDataParallel):
    """Has a module and a buffer beside what it is around."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.teacher = torch.nn.Linear(2, 2)
        self.register_buffer("ema", torch.zeros(3))


class WithMean(DistributedDataParallel):
    """Keeps a tensor that is no buffer."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.mean = torch.zeros(3)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}mean"] = self.mean

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        self.mean = state.pop(f"{prefix}mean").clone()
        super()._load_from_state_dict(state, prefix, *others)


class Adapter(torch.nn.Module):
    """Tells of what is trained alone."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(2, 2).requires_grad_(False)
        self.added = torch.nn.Linear(2, 2)

    def state_dict(self, *args: Any, **more: Any) -> Any:
        return {name: one for name, one in super().state_dict(*args, **more).items() if "base" not in name}

    def load_state_dict(self, state_dict: Any, *_: Any, **more: Any) -> Any:
        return super().load_state_dict(state_dict, strict=False)


class Scaled(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return 2.0

    def set_extra_state(self, state: Any) -> None:
        assert state == 2.0


def linear() -> torch.nn.Module:
    return torch.nn.Linear(2, 2)


def compiled() -> Any:
    return torch.compile(linear())


INNER: dict[str, Any] = {
    "plain": linear,
    "normed": lambda: weight_norm(torch.nn.Linear(2, 2)),
    "extra": lambda: Scaled(2, 2),
    "compiled": compiled,
    "named otherwise": Within,
    "named otherwise, a part compiled": lambda: torch.nn.Sequential(Within(), compiled()),
}


@pytest.mark.parametrize(
    "wrap", [torch.nn.Sequential, DistributedDataParallel, OfWhatItIsAround, WithMore, WithMean]
)
@pytest.mark.parametrize("inner", INNER)
def test_however_a_model_is_wrapped_it_comes_back(tmp_path: Path, wrap: Any, inner: str) -> None:
    with process_group():
        saved, loaded = (wrap(torch.nn.Sequential(INNER[inner]())) for _ in range(2))
        saved.mean = torch.full((3,), 5.0)
        assert comes_back(tmp_path, saved, loaded)
        if wrap is WithMean:
            assert torch.equal(loaded.mean, saved.mean)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, WithMore, WithMean])
def test_what_a_model_does_not_tell_of_comes_back_within_ddp(tmp_path: Path, wrap: Any) -> None:
    """torch does not ask it there."""
    with process_group():
        assert comes_back(tmp_path, wrap(Adapter()), wrap(Adapter()))


@pytest.mark.parametrize("inner", ["plain", "extra", "compiled"])
def test_what_is_beside_the_model_within_a_ddp_is_read_where_nothing_is_trained(
    tmp_path: Path, inner: str
) -> None:
    with process_group():
        saved, loaded = (WithMore(torch.nn.Sequential(INNER[inner]())) for _ in range(2))
        save(tmp_path, 1, trained(saved))
        load_model(str(tmp_path), loaded)
        assert same(saved, loaded)


def test_a_model_with_names_of_its_own_that_is_compiled_comes_back(tmp_path: Path) -> None:
    saved, loaded = (torch.compile(torch.nn.Sequential(Within())) for _ in range(2))
    assert comes_back(tmp_path, saved, loaded)


class Averaged(torch.nn.Linear):
    """Tells of what all ranks have on average, which comes while it tells."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("seen", torch.ones(2))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        seen: Any = self.seen
        everybody: Any = torch.distributed.group.WORLD
        destination[f"{prefix}seen"] = collectives.all_reduce(seen, "avg", everybody)


def test_what_is_not_there_yet_comes_back(tmp_path: Path) -> None:
    with process_group():
        assert comes_back(tmp_path, Averaged(), Averaged())


def in_one_piece() -> torch.nn.Module:
    """As scripts lay it out that average all of a model at once."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    each = [one for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()]
    whole, at = torch.cat([one.detach().flatten() for one in each]), 0
    for one in each:
        one.data = whole[at : at + one.numel()].view_as(one)
        at += one.numel()
    return model


def test_what_ranks_have_alike_is_the_same_wherever_it_lies(tmp_path: Path) -> None:
    """One rank may have read it from a file, and the others from that rank."""
    apart = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    plans = [SavingWorker(str(tmp_path)).saver._plan(trained(each)) for each in (apart, in_one_piece())]
    assert (
        plans[0].alike.keys()
        == plans[1].alike.keys()
        == {f"model.{name}" for name, _ in apart.named_parameters()}
    )
    assert comes_back(tmp_path / "run", in_one_piece(), in_one_piece())


def test_tensors_lie_in_the_memory_of_others() -> None:
    whole = torch.zeros(10)
    held = SharedStorage([whole[2:8], whole[3:4], torch.empty(0), torch.empty(2, device="meta")])
    inside, outside = (
        (whole[2:8], whole[2:3], whole[5:7]),
        (whole[:2], whole[8:], whole[5:5], torch.zeros(2), 7),
    )
    assert all(one in held for one in inside)
    assert not any(one in held for one in outside)


def test_a_model_that_torch_has_patched_comes_back(tmp_path: Path) -> None:
    saved, loaded = (torch.nn.Sequential(Within()) for _ in range(2))
    for model in (saved, loaded):
        _patch_model_state_dict(model)
    assert comes_back(tmp_path, saved, loaded)


def test_weights_of_a_file_give_memory_to_what_has_none(tmp_path: Path) -> None:
    trained_one = torch.nn.Sequential(linear(), linear())
    torch.save(trained_one.state_dict(), tmp_path / "weights.pt")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, device="meta"), linear())
    load_weights(tmp_path / "weights.pt", model)
    assert same(trained_one, model)


def alike_where_a_rank_has_nothing() -> list[str]:
    model = torch.nn.Linear(4, 1)
    model.register_buffer("cache", torch.empty(0))
    mesh = init_device_mesh("cpu", (2,))
    model.bias = torch.nn.Parameter(distribute_tensor(torch.zeros(1), mesh, [Shard(0)]))
    model.double()  # the second rank's part of the bias has no memory any more
    saver = Saver.__new__(Saver)
    saver._ranks, saver._place = Collectives(mesh.get_rank(), 2, None), RankPosition(mesh.get_rank(), 2, 1)
    saver._layouts = RepeatedLayout(saver._lay_out)
    return sorted(saver._plan(trained(model)).alike)


def test_all_ranks_have_the_same_tensors_alike() -> None:
    assert as_ranks(2, alike_where_a_rank_has_nothing) == [["model.weight"]] * 2
