"""Ranks exchange the gradients of what is trained, whenever it has come to be so."""

from __future__ import annotations

import copy
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from airflow_elastic.runtime.model_changes.ddp_renewal import DDPRenewal, follow
from tests.support.machine.threads import process_group


class Adapter(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.own = base.requires_grad_(False), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.own(x)
        return found


def thaw(net: nn.Sequential) -> None:
    net[0].requires_grad_(True)


def freeze(net: nn.Sequential) -> None:
    net[1].requires_grad_(False)


def adapt(net: nn.Sequential) -> None:
    net[1] = Adapter(net[1])


def grow(net: nn.Sequential) -> None:
    """The last layer gets one output more."""
    net[2].weight = nn.Parameter(torch.cat([net[2].weight.detach(), torch.ones(1, 4)]))
    net[2].bias = nn.Parameter(torch.ones(len(net[2].weight)))


def thaw_and_freeze_again(net: nn.Sequential) -> None:
    net[0].requires_grad_(not net[0].weight.requires_grad)


def put_another_there(net: nn.Sequential) -> None:
    """The new layer may lie where the former one was."""
    net[2] = nn.Identity()
    net[2] = nn.Linear(4, 4)


def set_weight_anew(net: nn.Sequential) -> None:
    del net[2].weight
    net[2].weight = nn.Parameter(torch.ones(4, 4))


CHANGES = (thaw, freeze, adapt, grow, thaw_and_freeze_again, put_another_there, set_weight_anew)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    net[0].requires_grad_(False)
    return net


def gradients(rank: int, model: Any) -> list[Any]:
    model.zero_grad()
    torch.manual_seed(rank)
    model(torch.randn(3, 4)).pow(2).sum().backward()
    return [one.grad.clone() for one in model.parameters() if one.grad is not None]


def ranks(rank: int, store: str) -> list[str]:
    """Which changes have other gradients than a DDP that is made after them, on a real rank. What fully_shard has made
    exchanges those of layers that thaw by itself.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    wrong = []
    settings: dict[str, Any] = {
        "plain": {},
        "unused": {"find_unused_parameters": True},
        "views": {"gradient_as_bucket_view": True},
        "hook": {},
    }
    for name, options in settings.items():
        for change in CHANGES if name == "plain" else (thaw_and_freeze_again,):
            ours, theirs = network(), network()
            ddp = DistributedDataParallel(ours, **options)
            follow(ddp)
            if name == "hook":
                ddp.register_comm_hook(None, fp16_compress_hook)
            gradients(rank, ddp)
            for _ in range(2):
                torch.manual_seed(7)
                change(ours)
                torch.manual_seed(7)
                change(theirs)
                new = DistributedDataParallel(theirs, **options)
                if name == "hook":
                    new.register_comm_hook(None, fp16_compress_hook)
                for _ in range(2):
                    mine, expected = gradients(rank, ddp), gradients(rank, new)
                    if len(mine) != len(expected) or not all(map(torch.equal, mine, expected)):
                        wrong.append(f"{name} {change.__name__}")
                if change is adapt:
                    break
    sharded, theirs = network(), network()
    for one in sharded:
        fully_shard(one)
    fully_shard(sharded)
    gradients(rank, sharded)
    thaw(sharded)
    thaw(theirs)
    found = [one.full_tensor() for one in gradients(rank, sharded)]
    expected = gradients(rank, DistributedDataParallel(theirs))
    if len(found) != len(expected) or not all(map(torch.allclose, found, expected)):
        wrong.append("fsdp2")
    dist.destroy_process_group()
    return wrong


def two_passes(rank: int, store: str) -> list[str]:
    """Where one backward pass goes through two forward passes, between which a layer is frozen or thaws: what is wrong
    with the gradients, on a real rank.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(store, 2))
    wrong = []
    for frozen_first in (False, True):
        net = network().requires_grad_(True)
        net[1].requires_grad_(not frozen_first)
        ddp = DistributedDataParallel(net)
        follow(ddp)
        former = ddp.reducer
        for turn in range(3):
            net.zero_grad()
            torch.manual_seed(rank)
            loss = ddp(torch.randn(3, 4)).sum()
            net[1].requires_grad_(frozen_first)
            loss = loss + ddp(torch.randn(3, 4)).sum()
            net[1].requires_grad_(True)
            loss.backward()
            for name, one in net.named_parameters():
                mean = one.grad.clone()
                dist.all_reduce(mean)
                if not torch.allclose(mean / 2, one.grad):
                    wrong.append(f"{frozen_first} {turn} {name}")
            net[1].requires_grad_(not frozen_first)
        if not frozen_first and ddp.reducer is not former:
            wrong.append("renewed")
    dist.destroy_process_group()
    return wrong


def as_two(work: Callable[..., Any], *args: Any) -> list[Any]:
    context = get_context("forkserver")
    context.set_forkserver_preload(["airflow_elastic.runtime", __name__])
    with context.Pool(2, maxtasksperchild=1) as pool:
        return pool.starmap(work, [(rank, *args) for rank in range(2)], chunksize=1)


def test_what_is_exchanged_is_what_a_new_ddp_would(tmp_path: Path) -> None:
    assert as_two(ranks, str(tmp_path / "store")) == [[], []]


def test_two_forward_passes_of_one_backward_pass_are_exchanged_whole(tmp_path: Path) -> None:
    assert as_two(two_passes, str(tmp_path / "store")) == [[], []]


def exchanged(ddp: Any) -> int:
    found: int = ddp.logger._get_ddp_logging_data().ints_map["num_parameter_tensors"]
    return found


def test_a_change_before_it_is_followed_counts(tmp_path: Path) -> None:
    """As `rebuild`, and what a script does by `run.resumed`."""
    with process_group():
        ddp = DistributedDataParallel(network())
        thaw(ddp.module)
        follow(ddp)
        assert exchanged(ddp) == 4
        ddp(torch.ones(1, 4))
        assert exchanged(ddp) == 6


def test_nothing_is_done_where_nothing_changes() -> None:
    with process_group():
        ddp = DistributedDataParallel(network())
        follow(ddp)
        follow(ddp)
        assert sum(isinstance(one, DDPRenewal) for one in ddp._forward_pre_hooks.values()) == 1
        former = ddp.reducer
        ddp(torch.ones(1, 4))
        with torch.no_grad():
            thaw(ddp.module)
            ddp(torch.ones(1, 4))
        assert ddp.reducer is former


def test_nothing_is_done_where_all_is_frozen_for_a_while() -> None:
    """As a critic, while its generator is trained."""
    with process_group():
        ddp = DistributedDataParallel(network().requires_grad_(True))
        follow(ddp)
        former = ddp.reducer
        for trained in (False, True, False, True):
            ddp.module.requires_grad_(trained)
            ddp(torch.ones(1, 4))
        assert ddp.reducer is former
        thaw_and_freeze_again(ddp.module)
        ddp(torch.ones(1, 4))
        assert exchanged(ddp) == 4


def test_what_looks_for_unused_parameters_needs_nothing_for_a_part_that_is_frozen_for_a_while() -> None:
    with process_group():
        ddp = DistributedDataParallel(network().requires_grad_(True), find_unused_parameters=True)
        follow(ddp)
        former = ddp.reducer
        for trained in (False, True, False, True):
            ddp.module[0].requires_grad_(trained)
            ddp(torch.ones(1, 4)).sum().backward()
        assert ddp.reducer is former
        ddp.module[0] = nn.Identity()
        ddp(torch.ones(1, 4)).sum().backward()
        assert exchanged(ddp) == 4


def test_a_part_that_is_frozen_is_left_out_when_no_former_pass_is_open() -> None:
    with process_group():
        ddp = DistributedDataParallel(network().requires_grad_(True))
        follow(ddp)
        first = ddp(torch.ones(1, 4)).sum()
        freeze(ddp.module)
        second = ddp(torch.ones(1, 4)).sum()
        assert exchanged(ddp) == 6
        (first + second).backward()
        ddp(torch.ones(1, 4))  # its graph is gone at once
        assert exchanged(ddp) == 4


def test_a_copy_and_a_pickle_of_what_is_followed_go_on(tmp_path: Path) -> None:
    with process_group():
        ddp = DistributedDataParallel(network())
        follow(ddp)
        open_pass = ddp(torch.ones(1, 4))
        torch.save(ddp, tmp_path / "ddp.pt")
        for one in (copy.deepcopy(ddp), torch.load(tmp_path / "ddp.pt", weights_only=False)):
            thaw(one.module)
            one(torch.ones(1, 4)).sum().backward()
            assert exchanged(one) == 6
        assert exchanged(ddp) == 4
        open_pass.sum().backward()


def test_changes_to_and_fro_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with process_group(), caplog.at_level("INFO"):
        ddp = DistributedDataParallel(network().requires_grad_(True))
        follow(ddp)
        for _ in range(4):
            thaw_and_freeze_again(ddp.module)
            ddp(torch.ones(1, 4)).sum().backward()
    assert sum("exchanges the gradients" in one.getMessage() for one in caplog.records) == 2


def test_what_takes_the_place_of_a_layer_in_memory_is_another_one() -> None:
    with process_group():
        ddp = DistributedDataParallel(network().requires_grad_(True))
        follow(ddp)
        former = ddp.reducer
        ddp.module[2] = nn.Identity()
        ddp.module[2] = nn.Linear(4, 4)  # may be where the former one was
        ddp(torch.ones(1, 4)).sum().backward()
        assert ddp.reducer is not former


def test_of_what_is_compiled_the_whole_is_followed() -> None:
    """What torch.compile has made traces the hooks within."""
    with process_group():
        ddp = DistributedDataParallel(network())
        outer: Any = torch.compile(ddp, backend="eager")
        follow(outer)
        thaw(ddp.module)
        outer(torch.ones(1, 4)).sum().backward()
        assert exchanged(ddp) == 6
        assert all(one.grad is not None for one in ddp.parameters())


def test_each_of_several_is_followed() -> None:
    with process_group():
        both = nn.ModuleDict({name: DistributedDataParallel(network()) for name in ("one", "other")})
        follow(both)
        for one in both.values():
            thaw(one.module)
            one(torch.ones(1, 4))
            assert exchanged(one) == 6
