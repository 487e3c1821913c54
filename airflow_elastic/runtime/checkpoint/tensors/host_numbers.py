"""Numbers of a script that may be on a GPU, such as its loss: they reach the host without a wait.

`float(tensor)` waits until the GPU has computed the number. The GPU has nothing to do then, until Python has launched
the next step. So the number is copied to pinned memory, and read when an event says that it has arrived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

import torch
from torch.distributed.tensor import DTensor


class HostNumbers:
    """Numbers on their way to the host. Those that are not on a GPU are read at once: a script may change them.

    Args:
        numbers: by name; tensors have one element.

    Raises:
        RuntimeError, ValueError: a tensor has another number of elements.
    """

    def __init__(self, numbers: Mapping[str, torch.Tensor | float]) -> None:
        late = {name: number for name, number in numbers.items() if _is_on_gpu(number)}
        # torch takes pinned memory for such a copy.
        sent = {name: number.detach().to("cpu", non_blocking=True) for name, number in late.items()}
        self._events = [_recorded(device) for device in {number.device for number in late.values()}]
        self._numbers = {
            name: sent[name] if name in sent else _float(number) for name, number in numbers.items()
        }

    @property
    def ready(self) -> bool:
        """Whether all have arrived."""
        return all(event.query() for event in self._events)  # type: ignore[no-untyped-call]

    def read(self) -> dict[str, float]:
        """The numbers. Waits until they have arrived."""
        for event in self._events:
            event.synchronize()
        return {name: float(number) for name, number in self._numbers.items()}

    def finite(self) -> dict[str, float]:
        """Those that are finite. JSON cannot store the others. Waits until they have arrived."""
        return {name: number for name, number in self.read().items() if math.isfinite(number)}


def _is_on_gpu(number: torch.Tensor | float) -> TypeGuard[torch.Tensor]:
    if not isinstance(number, torch.Tensor) or isinstance(number, DTensor):
        return False
    return number.is_cuda and number.numel() == 1


def _recorded(device: torch.device) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
    return event


def _float(number: torch.Tensor | float) -> float:
    return float(number.detach() if isinstance(number, torch.Tensor) else number)
