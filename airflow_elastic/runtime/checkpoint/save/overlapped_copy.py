"""Copying what is saved while training goes on: weights and optimizer states change in the optimizer's step alone.

So they are copied during the forward and backward passes of the next step, and that optimizer's step waits for the end
of it. On GPUs a stream of its own copies, into memory that the driver has pinned, and only the GPU waits. The wait
before the step is what torch.distributed.checkpoint's asynchronous stagers leave to the script, and what tears
checkpoints where it is forgotten; here the optimizers are made to do it.

A script that changes weights elsewhere would tear them too. torch counts how often each tensor was changed in place:
where that count has moved, the copy is given up. It does not count what is done through `.data`, nor by CUDA graphs,
which skip the optimizers' wait as well.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from airflow_elastic.runtime.checkpoint.optimizers.composite import innermost
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.runtime.checkpoint.save.staging import Layout

log = logging.getLogger(__name__)

_pinned: dict[int, memoryview] = {}  # by address: what is pinned must stay mapped


class OverlappedCopy:
    """One state that is being copied.

    Args:
        layout: what it is; what may change before the optimizer's next step has been copied already.
        memory: where to.
        done: called by the thread that copies, with whether all of it is there and is what it was when this began.
    """

    def __init__(self, layout: Layout, memory: memoryview, done: Callable[[bool], None]) -> None:
        slow = layout.slow_parts
        self._counted = [part.source for _, part in slow]
        self._versions = _versions(self._counted)
        self._lock = threading.Lock()
        self._changed: bool | None = None  # as soon as that is settled
        self._failure: Exception | None = None
        self._under_way = threading.Event()
        self._ready = {
            part.tensor.device: _recorded(part.tensor.device) for _, part in slow if part.tensor.is_cuda
        }
        self._copied: dict[torch.device, torch.cuda.Event] = {}
        # Nobody else has the state: what a script has let go of meanwhile is free when it is copied.
        work = (layout, memory, done)
        self._thread = threading.Thread(target=self._work, args=work, name="copying", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until what is copied may be changed: on GPUs it is their work that waits. Raises like `join`."""
        self._under_way.wait()
        self._judge()
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)
        self._raise()

    def join(self) -> None:
        """Wait until everything is there, and told.

        Raises:
            InvalidInput: it has changed while it was copied, or there is no memory for it. It is not saved.
            ElasticError: it could not be copied.
        """
        self._thread.join()
        self._raise()

    def _work(self, layout: Layout, memory: memoryview, done: Callable[[bool], None]) -> None:
        try:
            for device, ready in self._ready.items():
                stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                stream.wait_event(ready)
                with torch.cuda.stream(stream):
                    layout.copy_slow(memory, device)
                    self._copied[device] = stream.record_event()
            layout.copy_slow(memory, torch.device("cpu"))
            self._under_way.set()
            for event in self._copied.values():
                event.synchronize()
            self._judge()
        except Exception as error:
            self._failure = error
            for device in self._ready:  # nothing may be copied to where somebody else is going to copy to
                torch.cuda.synchronize(device)
        finally:
            self._under_way.set()
        try:
            done(self._failure is None and not self._changed)
        except Exception as error:
            self._failure = error

    def _judge(self) -> None:
        """Find out whether anything has changed. Once is enough: when this has been done, changes do no harm."""
        with self._lock:
            if self._changed is None:
                self._changed = _versions(self._counted) != self._versions
                self._counted.clear()

    def _raise(self) -> None:
        if self._failure is not None:
            # Anything else may be a GPU that has failed.
            kind = InvalidInput if isinstance(self._failure, InvalidInput) else ElasticError
            raise kind(f"what is to be saved could not be copied: {self._failure}") from self._failure
        if self._changed:
            raise InvalidInput(
                "weights or optimizer states have changed outside of an optimizer's step while they were copied: with "
                "checkpoint.overlap they must not. Turn it off, and run again: that goes on from the checkpoint before"
            )


def wait_before_steps(optimizers: Iterable[Any], wait: Callable[[], None]) -> bool:
    """Have each of these optimizers wait before its step; returns whether all of them can be made to."""

    def before(*_: Any) -> None:
        wait()

    inner = [each for optimizer in optimizers for each in innermost(optimizer)]
    # One that has not been made by torch's own `__init__` has no hooks.
    if not all(hasattr(optimizer, "_optimizer_step_pre_hooks") for optimizer in inner):
        return False
    for optimizer in inner:
        optimizer.register_step_pre_hook(before)
    return True


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _recorded(device: torch.device) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
    return event


def pin(memory: memoryview) -> None:
    """Pin all of the mapping that this is a part of, so that GPUs copy to it at full speed, and beside other work.

    Where the driver refuses, copies are slower and right all the same.
    """
    whole = memoryview(memory.obj)
    address = torch.frombuffer(whole, dtype=torch.uint8).data_ptr()
    if address in _pinned:
        return
    _pinned[address] = whole
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = int(runtime.cudaHostRegister(address, len(whole), 0))
    if error:
        with contextlib.suppress(RuntimeError):  # CUDA tells of it once more, whoever asks next
            torch.zeros(1, device="cuda")
        log.warning("memory to save into cannot be pinned (CUDA error %d): saves take longer", error)
