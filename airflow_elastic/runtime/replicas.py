"""Whether ranks have alike what a checkpoint holds once for all of them.

What is not sharded is shared out: each worker writes some of it, for all. Where ranks differ in it, as those do that
train by themselves without DDP, a checkpoint would be a mixture that was nobody's state; and where they do not even
have the same tensors, some would be written by nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from airflow_elastic.adapters import checksums
from airflow_elastic.runtime.ranks import Ranks
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

_NAMED = 3  # of those that differ, in what is told

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def check_alike(tensors: Mapping[str, torch.Tensor], ranks: Ranks) -> bool:
    """Refuse states of other parts than other ranks', and warn of parts that differ. All ranks call this together.

    Args:
        tensors: what is taken to be the same on all ranks, by name.
        ranks: this rank among the others.

    Returns:
        Whether all of it is the same, bit for bit.

    Raises:
        InvalidInput: ranks have tensors of other names, shapes or dtypes; says which.
    """
    if ranks.world_size == 1:
        return True
    kinds = {name: f"{tuple(one.shape)} of {one.dtype}" for name, one in tensors.items()}
    if _differ(kinds, ranks):
        _refuse(ranks.gather(kinds))
    sums = {name: _sum(one) for name, one in tensors.items()}
    if not _differ(sums, ranks):
        return True
    told = ranks.gather(sums)
    others = sorted(name for name in sums if len({each[name] for each in told}) > 1)
    log.warning(
        "ranks differ in %d of %d tensors that are not sharded (%s): a checkpoint has each of them from one rank, and "
        "is nobody's state. Wrap the model in DistributedDataParallel, shard it, or use run.average; on GPUs of "
        "several kinds replicas differ by rounding",
        *(len(others), len(sums), _some(others)),
    )
    return False


def _differ(mine: Mapping[str, Any], ranks: Ranks) -> bool:
    """Whether any rank has something else; told by few bytes of each."""
    return len(set(ranks.gather(checksums.of(repr(sorted(mine.items())).encode())))) > 1


def _refuse(told: list[dict[str, str]]) -> None:
    rank, theirs = next((rank, kinds) for rank, kinds in enumerate(told) if kinds != told[0])
    names = sorted(name for name in {*told[0], *theirs} if told[0].get(name) != theirs.get(name))
    name = names[0]
    first, other = told[0].get(name, "nothing"), theirs.get(name, "nothing")
    raise InvalidInput(
        f"ranks have not the same state: {_some(names)}. Of {name} rank 0 has {first}, rank {rank} {other}. What is "
        "not sharded has to be alike on all ranks: shard it as DTensors, or save it yourself; an optimizer's states "
        "are there once each rank has used all parameters"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _sum(tensor: torch.Tensor) -> int | str:
    """A checksum of a tensor's bytes, taken where it is: a GPU adds them up as integers, which no order changes."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.device.type == "cpu":
        return checksums.of(flat.view(torch.uint8).numpy().data) if flat.numel() else ""
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    return int(flat.view(_INTEGERS[flat.element_size()]).sum(dtype=torch.int64))
