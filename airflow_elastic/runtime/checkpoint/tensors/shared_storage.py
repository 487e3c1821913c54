"""Which tensors lie in the memory of others: a state has other tensors than its model, and by any names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.tensors.sharding import is_wrapper


class SharedStorage:
    """The memory of some tensors, or of this rank's part of them.

    Not that of the storage which they are in: that may hold others, too, and on one rank only, where a script has read
    a file there and not on the others.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        held = sorted(memory for one in tensors if (memory := _memory(one)))
        self._begins = [begin for begin, _ in held]
        # One may lie within another, and end before it does.
        self._ends = [*accumulate((end for _, end in held), max)]

    def __contains__(self, tensor: Any) -> bool:
        """Whether a tensor begins there. One that has no memory does not, as not all ranks may have any of it."""
        memory = _memory(tensor)
        if memory is None:
            return False
        begin, _ = memory
        at = bisect_right(self._begins, begin)
        return at > 0 and begin < self._ends[at - 1]


def ties_among(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Further names of tensors that are there by several, as tied weights are, with the first one of each."""
    ties: dict[str, str] = {}
    firsts: dict[Any, str] = {}
    for name, one in tensors.items():
        if (memory := _memory(one)) is not None:
            own = one._local_tensor if isinstance(one, DTensor) else one
            layout = own.dtype, own.shape, own.stride(), own.is_conj(), own.is_neg(), one.shape
            if (first := firsts.setdefault((memory, layout), name)) != name:
                ties[name] = first
    return ties


def _memory(value: Any) -> tuple[int, int] | None:
    """Where a tensor begins and ends; None where it has no memory of its own."""
    own = value._local_tensor if isinstance(value, DTensor) else value
    if not isinstance(own, torch.Tensor) or is_wrapper(own) or own.layout is not torch.strided:
        return None
    try:
        begin = own.data_ptr()
    except (RuntimeError, ValueError):  # it stands for what is somewhere else, or not yet there
        return None
    return (begin, begin + own.nbytes) if begin and own.nbytes else None
