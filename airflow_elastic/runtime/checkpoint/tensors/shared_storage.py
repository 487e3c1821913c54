"""Find tensors that share memory: a state dict has other tensor objects than its model, under any names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from airflow_elastic.runtime.checkpoint.tensors.sharding import is_wrapper


class SharedStorage:
    """The memory of some tensors, or of this rank's parts of them.

    It is not the memory of their whole storages. A storage may hold more tensors, on some ranks only: for example if
    only one rank has read them from a file.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        held = sorted(memory for one in tensors if (memory := _memory(one)))
        self._begins = [begin for begin, _ in held]
        # A tensor may be inside another one, and end before it.
        self._ends = [*accumulate((end for _, end in held), max)]

    def __contains__(self, tensor: Any) -> bool:
        """Whether a tensor begins in this memory. False without memory: other ranks may have a part of the tensor."""
        memory = _memory(tensor)
        return memory is not None and self.holds(memory[0])

    def holds(self, address: int) -> bool:
        """Whether this address is in the memory."""
        at = bisect_right(self._begins, address)
        return at > 0 and address < self._ends[at - 1]


def ties_among(tensors: Mapping[str, Any]) -> dict[str, str]:
    """The second and further names of each tensor (tied weights have several), with its first name."""
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
    """The addresses at which a tensor begins and ends; None if it has no memory of its own."""
    own = value._local_tensor if isinstance(value, DTensor) else value
    if not isinstance(own, torch.Tensor) or is_wrapper(own) or own.layout is not torch.strided:
        return None
    try:
        begin = own.data_ptr()
    except (RuntimeError, ValueError):  # a fake tensor, for example, or a lazy parameter
        return None
    return (begin, begin + own.nbytes) if begin and own.nbytes else None
