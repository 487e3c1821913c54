"""Names in a checkpoint are those that torch's own state dicts have, however a model is wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.checkpoint.tensors.parameter_names import names_of, weights_of
from airflow_elastic.runtime.checkpoint.tensors.shared_storage import SharedStorage
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.fake_ranks import as_ranks


class Scaled(torch.nn.Linear):
    """Has a state of its own, as quantised layers do, which it computes."""

    def get_extra_state(self) -> Any:
        return {"scale": 2.0, "norm": self.weight.norm()}

    def set_extra_state(self, state: Any) -> None:
        assert state["scale"] == 2.0


class Own(torch.nn.Module):
    """Has a module and a tensor that would be called the same without a word that torch has for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._orig_mod = torch.nn.Linear(2, 2)
        self.weight = torch.nn.Parameter(torch.ones(2))


class Deep(torch.nn.Module):
    """Wrapped in parts, with names as wrappers have them, a buffer that is not kept, and weights in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.submodule = torch.nn.Sequential(torch.nn.BatchNorm1d(2), Scaled(2, 2))
        self.module = torch.nn.BatchNorm1d(2)
        self.again = checkpoint_wrapper(torch.nn.BatchNorm1d(2))
        self.both = checkpoint_wrapper(torch.compile(torch.nn.Linear(2, 2)))  # type: ignore[arg-type]
        self.own = Own()
        self.compiled: Any = torch.compile(torch.nn.Linear(2, 2))
        self.tied = torch.nn.Linear(2, 2)
        self.tied.weight = self.compiled.weight
        self.register_buffer("passing", torch.zeros(3), persistent=False)


def plain() -> torch.nn.Module:
    return Deep()


def compiled() -> Any:
    return torch.compile(torch.nn.Sequential(Deep()))


def replicated() -> torch.nn.Module:
    return DistributedDataParallel(torch.nn.Sequential(Deep()))


def replicated_in_part() -> torch.nn.Module:
    each = (DistributedDataParallel(torch.nn.Linear(2, 2)) for _ in range(2))
    return torch.nn.Sequential(*each, checkpoint_wrapper(DistributedDataParallel(torch.nn.Linear(2, 2))))


def replicated_and_compiled() -> Any:
    return torch.compile(DistributedDataParallel(Deep()))


def sharded() -> torch.nn.Module:
    model = Deep()
    fully_shard(model.submodule, mesh=init_device_mesh("cpu", (2,)))
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def of_the_first_fsdp() -> torch.nn.Module:
    device = torch.device("cpu")
    return FullyShardedDataParallel(
        torch.nn.Linear(2, 2), sharding_strategy=ShardingStrategy.NO_SHARD, device_id=device
    )


def same(build: Any) -> int:
    """How many names there are, after all of it has been compared."""
    model = build()
    ours, torchs = weights_of(model), get_model_state_dict(model)
    assert ours.keys() == torchs.keys()
    for name, value in ours.items():
        other = torchs[name]
        assert type(value) is type(other)
        if isinstance(value, torch.Tensor):
            mine, theirs = (one.to_local() if isinstance(one, DTensor) else one for one in (value, other))
            assert torch.equal(mine, theirs)
            # The first FSDP makes copies itself.
            assert mine.data_ptr() == theirs.data_ptr() or isinstance(model, FullyShardedDataParallel), name
        else:
            assert value == other
            assert not value["norm"].requires_grad, "a graph would be kept, too"
    names = names_of(model)
    assert set(names) == set(model.parameters())
    assert set(names.values()) <= ours.keys()
    weights = {
        name for name in ours if not any(word in name for word in ("running", "tracked", "extra_state"))
    }
    known = SharedStorage(model.parameters())
    if not isinstance(model, FullyShardedDataParallel):  # it makes copies itself
        assert {name for name, one in ours.items() if one in known} == weights
    return len(ours)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (plain, 27),
        (compiled, 27),
        (replicated, 27),
        (replicated_in_part, 6),
        (replicated_and_compiled, 27),
        (sharded, 27),
        (of_the_first_fsdp, 2),
    ],
)
def test_names_are_those_of_torch(build: Any, count: int) -> None:
    assert as_ranks(2, same, build) == [count, count]


def test_a_model_changes_what_it_keeps_without_gradients() -> None:
    """As hooks that clamp weights do."""
    model = torch.nn.Linear(2, 2)
    model.register_state_dict_pre_hook(lambda module, *_: module.weight.clamp_(-0.1, 0.1))
    assert weights_of(model)["weight"].abs().max() <= 0.1


def test_a_model_without_a_state_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the model \(ReLU\) has an empty state dict"):
        weights_of(torch.nn.ReLU())


def test_two_tensors_of_one_name_are_refused() -> None:
    """The one would be lost, and the other stand in its place."""

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = checkpoint_wrapper(torch.nn.Linear(2, 2, bias=False))

        def state_dict(self, *_: Any, destination: Any = None, prefix: str = "", **more: Any) -> Any:
            destination = {} if destination is None else destination
            for name in ("weight", "_checkpoint_wrapped_module.weight"):
                destination[f"{prefix}a.{name}"] = torch.zeros(2, 2)
            return destination

    with pytest.raises(InvalidInput, match=r"the model \(Both\) has two tensors .* as a\.weight"):
        weights_of(Both())
