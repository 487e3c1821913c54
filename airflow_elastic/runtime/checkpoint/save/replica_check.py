"""Check that all ranks have the same values of the tensors that a checkpoint stores only once.

Tensors that are not sharded are divided among the workers, and each writes its share for all. Ranks that train without
DDP have different values, so a checkpoint would mix the states of several ranks. If ranks have different sets of
tensors, no rank would write some of them.

A few hundred values of each tensor are enough for the check, because a step changes all values. So ranks read no more
than that while they train, and compute no hashes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch

from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.errors import InvalidInput

log = logging.getLogger(__name__)

_NAMED = 3  # names of differing tensors in a message

#: How many values of each tensor are compared, spread evenly; all values of a smaller one.
COMPARED = 256


class ReplicaCheck:
    """Whether ranks have the same tensors. Refuses ranks with different tensors. All ranks make it together.

    Values of tensors on GPUs are on their way to the host when this returns, so that nothing waits for them.

    Args:
        tensors: those that should be the same on all ranks, by name.
        ranks: this rank among the others.

    Raises:
        InvalidInput: ranks have tensors of other names, shapes or dtypes; says which.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], ranks: Collectives) -> None:
        self._ranks = ranks
        self._values: dict[str, torch.Tensor] = {}
        if ranks.world_size == 1:
            return
        kinds = {name: f"{tuple(one.shape)} of {one.dtype}" for name, one in tensors.items()}
        if ranks.any(kinds != ranks.from_first(lambda: kinds)):
            _refuse(ranks.gather(kinds))
        self._values = {name: _some_values(one) for name, one in tensors.items()}
        gpus = {one.device for one in tensors.values() if one.is_cuda}
        self._events = [torch.cuda.current_stream(device).record_event() for device in gpus]

    def result(self) -> bool:
        """Warn of different values. All ranks call this together.

        Returns:
            Whether the compared values are the same on all ranks, bit for bit.
        """
        ranks = self._ranks
        if ranks.world_size == 1:
            return True
        for event in self._events:
            event.synchronize()
        values = {name: one.numpy().tobytes() for name, one in self._values.items()}
        first = ranks.from_first(lambda: values)
        others = {name for name, mine in values.items() if mine != first[name]}
        if not ranks.any(bool(others)):
            return True
        found = sorted(set().union(*ranks.gather(others)))
        log.warning(
            "ranks differ in %d of %d tensors that are not sharded (%s). A checkpoint takes each of them from one "
            "rank, so it mixes several states. Wrap the model in DistributedDataParallel, shard it, or use "
            "run.average. On GPUs of several kinds, replicas differ by rounding",
            *(len(found), len(values), _some(found)),
        )
        return False


def _refuse(by_rank: list[dict[str, str]]) -> None:
    rank, theirs = next((rank, kinds) for rank, kinds in enumerate(by_rank) if kinds != by_rank[0])
    names = sorted(name for name in {*by_rank[0], *theirs} if by_rank[0].get(name) != theirs.get(name))
    name = names[0]
    first, other = by_rank[0].get(name, "nothing"), theirs.get(name, "nothing")
    raise InvalidInput(
        f"ranks do not have the same state: {_some(names)}. For {name}, rank 0 has {first}, rank {rank} has {other}. "
        "Tensors that are not sharded must be alike on all ranks: shard them as DTensors, or save them yourself. An "
        "optimizer has all states once each rank has used all parameters"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _some_values(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of the compared values, on the host or on the way to it."""
    tensor, count = tensor.detach().resolve_conj().resolve_neg(), tensor.numel()
    if tensor.element_size() == 1:  # torch cannot index some of these dtypes
        tensor = tensor.view(torch.uint8)
    if count > COMPARED:
        places = torch.linspace(0, count - 1, COMPARED, dtype=torch.float64, device=tensor.device).long()
        tensor = tensor[torch.unravel_index(places, tensor.shape)]  # flattening may copy the tensor
    found = tensor.reshape(-1).contiguous().view(torch.uint8)
    return found.to("cpu", non_blocking=True) if found.is_cuda else found.clone()
