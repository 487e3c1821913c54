"""The first weights of Lightning's `ModelPruning`, to which it resets the remaining weights.

This is its default (`use_lottery_ticket_hypothesis`). On one device, the first reset gives the parameters the memory
of its copies. From then on training changes the copies, and later resets have no effect. A restarted attempt has
separate copies, so the shared memory must be restored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch


def shared(pruning: Any) -> list[int]:
    """Numbers of the callback's parameters that share memory with their copies."""
    return [number for number, copy, own in _each(pruning) if copy.data_ptr() == own.data_ptr()]


def share(pruning: Any, numbers: Collection[int]) -> None:
    """Make the copies of these parameters share their memory again."""
    for number, copy, own in _each(pruning):
        if number in numbers:
            copy.data = own.data


def _each(pruning: Any) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    for layer in (getattr(pruning, "_original_layers", None) or {}).values():
        for number, name in layer["names"]:
            module, _ = pruning._parameters_to_prune[number]
            copy = getattr(layer["data"], name, None)
            own = getattr(module, f"{name}_orig", getattr(module, name, None))
            if isinstance(copy, torch.Tensor) and isinstance(own, torch.Tensor):
                yield number, copy, own
