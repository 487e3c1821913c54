"""Second models and their optimizers, given by names, come back however they are wrapped, and from earlier releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from airflow_elastic.runtime.checkpoint.save.named_objects import NamedObjects
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.spec.errors import InvalidInput
from tests.support.machine.threads import process_group
from tests.support.training.saving import restorer, save


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ModuleDict({"last": nn.Linear(3, 2)})["last"])


def sharded(model: nn.Module) -> Any:
    fully_shard(model[0])  # type: ignore[index]
    return fully_shard(model)


WRAPS: dict[str, Callable[[nn.Module], Any]] = {
    "bare": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp2": sharded,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "ddp compiled": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
    "compiled within ddp": lambda model: DistributedDataParallel(torch.compile(model, backend="eager")),  # type: ignore[arg-type]
}


def begun(wrap: str, seed: int) -> tuple[Stateful, list[torch.optim.Optimizer]]:
    """A generator, a critic with two optimizers, and a teacher, each wrapped."""
    first, critic, teacher = (WRAPS[wrap](net(seed + number)) for number in range(3))
    own = [*critic.parameters()]
    by_name = {
        "critic_optimizer": torch.optim.AdamW(own[:2], lr=0.1),
        "critic_rest": torch.optim.SGD(own[2:], lr=0.1 / (1 + seed), momentum=0.9),
    }
    one = torch.optim.AdamW(first.parameters(), lr=0.1)
    others = {"critic": critic, "teacher": teacher, **by_name}
    return Stateful(first, (one,), others), [one, *by_name.values()]


def trained(objects: Stateful, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(5, 4)
        (objects.model(x) + objects.others["critic"](x)).pow(2).sum().backward()
        for one in optimizers:
            one.step()
            one.zero_grad()


def whole(value: Any) -> torch.Tensor:
    found: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found.detach().clone()


def content(objects: Stateful) -> list[torch.Tensor]:
    models = (objects.model, objects.others["critic"], objects.others["teacher"])
    return [whole(one) for each in models for one in (*each.parameters(), *each.buffers())]


def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def as_before(self: NamedObjects, one: Any) -> Any:
    return one.state_dict()


SHORT = (("fsdp2", False), ("ddp compiled", True))
CASES = [
    pytest.param(
        *each, id=" ".join((each[0], "of a former release" if each[1] else "")).strip(),
        marks=() if each in SHORT else pytest.mark.slow,
    )
    for each in ((wrap, former) for wrap in WRAPS for former in (False, True))
]  # fmt: skip


@pytest.mark.parametrize(("saved", "former"), CASES)
def test_comes_back_in_whatever_it_is_wrapped(saved: str, former: bool, tmp_path: Path) -> None:
    with process_group():
        one, optimizers = begun(saved, 0)
        trained(one, optimizers, 2)
        if former:
            with patch.object(NamedObjects, "_state", as_before):
                save(tmp_path / "run", 1, one)
        else:
            save(tmp_path / "run", 1, one)
        there = content(one)
        trained(one, optimizers, 2)
        end = content(one)
        for wrap in WRAPS:
            other, mine = begun(wrap, 10)
            restorer(tmp_path / "run").restore(other)
            assert alike(content(other), there), wrap
            assert mine[2].param_groups[0]["lr"] == 0.1
            trained(other, mine, 2)
            assert all(map(torch.allclose, content(other), end)), wrap
            trained(other, mine, 1)


def test_an_average_of_a_wrapped_model_comes_back(tmp_path: Path) -> None:
    with process_group():
        models = [net(number) for number in range(3)]
        one = Stateful(models[0], (), {"ema": AveragedModel(DistributedDataParallel(models[1]))})
        one.others["ema"].update_parameters(models[2])
        other = Stateful(net(7), (), {"ema": AveragedModel(net(8))})
        save(tmp_path / "run", 1, one)
        restorer(tmp_path / "run").restore(other)
        names = other.others["ema"].state_dict()
        assert alike([*names.values()], [*one.others["ema"].state_dict().values()])
        assert names["n_averaged"] == 1


def dropping(seed: int, *, drops: bool) -> Stateful:
    """A critic that is trained, and has lost a layer if it is to; the optimizer still has that."""
    critic: Any = nn.Sequential(net(seed), nn.Linear(2, 2), nn.Linear(2, 2))
    one = Stateful(
        net(seed + 1), (), {"own": torch.optim.Adam(critic.parameters(), lr=0.1), "critic": critic}
    )
    step_of(one)
    if drops:
        del critic[1]
        step_of(one)
    return one


def step_of(objects: Stateful) -> None:
    objects.others["own"].zero_grad()
    objects.others["critic"](torch.ones(5, 4)).pow(2).sum().backward()
    objects.others["own"].step()


def test_a_layer_that_a_further_model_has_lost_is_left_out(tmp_path: Path) -> None:
    one = dropping(0, drops=True)
    save(tmp_path / "run", 1, one)
    for rebuilds_optimizer in (False, True):
        other = dropping(7, drops=True)
        if rebuilds_optimizer:
            critic = other.others["critic"]
            by_name = {"critic": critic, "own": torch.optim.Adam(critic.parameters(), lr=0.1)}
            other = Stateful(other.model, (), by_name)
        restorer(tmp_path / "run").restore(other)
        for mine, theirs in zip(
            other.others["critic"].parameters(), one.others["critic"].parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)
            kept, expected = (each.others["own"].state for each in (other, one))
            assert torch.equal(kept[mine]["exp_avg"], expected[theirs]["exp_avg"])
            assert kept[mine]["step"] == 2


def test_a_lost_layer_that_is_still_changed_is_refused(tmp_path: Path) -> None:
    """As the first model's."""
    one = dropping(0, drops=False)
    critic: Any = one.others["critic"]
    lost = critic[1]
    del critic[1]
    save(tmp_path / "run", 1, one)
    step_of(one)
    save(tmp_path / "run", 2, one)  # its gradients are none: it stays as it is
    for each in lost.parameters():
        each.grad = torch.ones_like(each)
    one.others["own"].step()
    with pytest.raises(InvalidInput, match="still changes a parameter"):
        save(tmp_path / "run", 3, one)


def test_an_optimizer_of_two_models_is_refused_in_words_where_it_has_others(tmp_path: Path) -> None:
    def made(*seeds: int) -> Stateful:
        nets = {f"net{seed}": net(seed) for seed in seeds}
        own = [each for one in nets.values() for each in one.parameters()]
        return Stateful(net(9), (), {"own": torch.optim.SGD(own, lr=0.1), **nets})

    save(tmp_path / "run", 1, made(1, 2))
    other = made(1, 2)
    other.others["own"].param_groups[0]["params"].pop()
    with pytest.raises(InvalidInput, match="its own does not fit: loaded state dict contains"):
        restorer(tmp_path / "run").restore(other)


def test_another_model_is_refused_by_its_name(tmp_path: Path) -> None:
    save(tmp_path / "run", 1, Stateful(net(0), (), {"teacher": net(1)}))
    other = Stateful(net(0), (), {"teacher": nn.Linear(2, 2)})
    with pytest.raises(
        InvalidInput,
        match=r"checkpoint 1 of .*: its teacher is of another model: Error.*Missing key.*Use the model and",
    ):
        restorer(tmp_path / "run").restore(other)


def test_another_optimizer_is_refused_by_its_name(tmp_path: Path) -> None:
    def made(kind: Any, **options: Any) -> Stateful:
        critic = net(1)
        critic_optimizer = kind(critic.parameters(), lr=0.1, **options)
        return Stateful(net(0), (), {"critic": critic, "own": critic_optimizer})

    save(tmp_path / "run", 1, made(torch.optim.AdamW))
    with pytest.raises(InvalidInput, match="its own does not fit: an optimizer is of another class"):
        restorer(tmp_path / "run").restore(made(torch.optim.SGD, momentum=0.9))


def test_an_optimizer_without_its_model_is_refused(tmp_path: Path) -> None:
    critic = net(1)
    by_name = {"critic": critic, "own": torch.optim.AdamW(critic.parameters())}
    save(tmp_path / "run", 1, Stateful(net(0), (), by_name))
    alone = torch.optim.AdamW(net(1).parameters())
    with pytest.raises(InvalidInput, match="is given no model with all parameters of the optimizer"):
        restorer(tmp_path / "run").restore(Stateful(net(0), (), {"own": alone}, left=frozenset({"critic"})))
    with process_group():
        critic = sharded(net(1))
        with pytest.raises(InvalidInput, match=r"own is an optimizer \(AdamW\) of sharded parameters"):
            Stateful(net(0), (), {"own": torch.optim.AdamW(critic.parameters())})
