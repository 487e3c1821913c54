"""How long a rank's own part of a step takes: the forward pass of its model, in which it waits for no other rank.

The steps of all ranks take equally long, because each rank waits for the slowest. Only the forward pass shows which
rank that is.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


class ForwardTimer:
    """Times the forward passes of a model.

    A GPU runs them asynchronously, so there CUDA events measure them. The result is read when it is ready, without
    waiting, so not every pass is timed.

    Args:
        model: the model of this rank. In DDP, the inner model is timed: DDP itself exchanges buffers before it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._cuda = any(parameter.is_cuda for parameter in inner.parameters())
        self._began: float | None = None
        self._events: tuple[Any, Any] | None = None  # torch.cuda has no types
        self._pending = False  # both events are recorded, and not read yet
        self._seconds, self._passes = 0.0, 0
        self._hooks = [
            inner.register_forward_pre_hook(self._before),
            inner.register_forward_hook(self._after),
        ]

    def end(self) -> None:
        """Time no more passes."""
        for hook in self._hooks:
            hook.remove()

    def mean(self) -> float:
        """Mean seconds of a forward pass since the last call; 0.0 if none was timed."""
        self._read()
        seconds, passes = self._seconds, self._passes
        self._seconds, self._passes = 0.0, 0
        return seconds / passes if passes else 0.0

    def _before(self, module: torch.nn.Module, arguments: Any) -> None:
        if not self._cuda:
            self._began = time.perf_counter()
            return
        self._read()
        if not self._pending:
            new: Any = torch.cuda.Event
            self._events = (new(enable_timing=True), new(enable_timing=True))
            self._events[0].record()

    def _after(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if self._began is not None:
            self._add(time.perf_counter() - self._began)
            self._began = None
        elif self._events is not None and not self._pending:
            self._events[1].record()
            self._pending = True

    def _read(self) -> None:
        if self._pending and self._events is not None and self._events[1].query():
            self._add(self._events[0].elapsed_time(self._events[1]) / 1000)
            self._events, self._pending = None, False

    def _add(self, seconds: float) -> None:
        self._seconds += seconds
        self._passes += 1
