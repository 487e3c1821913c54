"""The first weights, to which Lightning's `ModelPruning` resets those that it leaves: `use_lottery_ticket_hypothesis`,
its default.

When it does so for the first time, on one device, parameters get the memory of its copies of them: from then on the
copies are what is trained, and resetting changes nothing any more. A restarted attempt has copies of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch


def shared(pruning: Any) -> list[int]:
    """Numbers of the parameters of such a callback whose copies are in the same memory: plain values."""
    return [number for number, copy, own in _each(pruning) if copy.data_ptr() == own.data_ptr()]


def share(pruning: Any, numbers: Collection[int]) -> None:
    """Have the copies of these be in the memory of the parameters, as they were."""
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
