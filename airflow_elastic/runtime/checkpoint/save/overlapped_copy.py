"""Copy a state while training goes on: weights and optimizer states change only in the optimizer's step.

So they are copied during the forward and backward passes of the next step, and that optimizer's step waits for the end
of the copy. On GPUs a separate stream copies into pinned memory, and only the GPU waits. The asynchronous stagers of
torch.distributed.checkpoint leave this wait to the script, and without it a checkpoint mixes two steps. Here a hook
makes the optimizers wait.

A script that changes weights elsewhere would cause the same mixture. torch counts the in-place changes of each tensor.
If that count has changed, the copy is abandoned. It does not include changes through `.data`, nor those by CUDA graphs,
which skip the hook as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from airflow_elastic.runtime.checkpoint.optimizers.composite import innermost
from airflow_elastic.spec.errors import ElasticError, InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.runtime.checkpoint.save.layout import Layout


class OverlappedCopy:
    """The copy of one state, in a thread.

    Args:
        layout: of the state. Parts that may change before the optimizer's next step have been copied already.
        memory: the destination.
        done: called by the copying thread, with whether the copy is complete and no tensor has changed meanwhile.
    """

    def __init__(self, layout: Layout, memory: memoryview, done: Callable[[bool], None]) -> None:
        self._counted = layout.slow_sources
        self._versions = _versions(self._counted)
        self._lock = threading.Lock()
        self._changed: bool | None = None  # None until it is known
        self._failure: Exception | None = None
        self._under_way = threading.Event()
        self._ready = {device: _recorded(device) for device in layout.gpus}
        self._copied: dict[torch.device, torch.cuda.Event] = {}
        # Only the thread holds the state, so tensors that the script drops are freed after the copy.
        work = (layout.held(), memory, done)
        self._thread = threading.Thread(target=self._work, args=work, name="copying", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until the tensors may be changed; for those on a GPU only its stream waits. Raises like `join`."""
        self._under_way.wait()
        self._judge()
        for device, event in self._copied.items():
            torch.cuda.current_stream(device).wait_event(event)
        self._raise()

    def join(self) -> None:
        """Wait until the copy is complete, and `done` has been called.

        Raises:
            InvalidInput: a tensor has changed while it was copied, or there is no memory. The state is not saved.
            ElasticError: the state could not be copied.
        """
        self._thread.join()
        self._raise()

    def _work(self, layout: Layout, memory: memoryview, done: Callable[[bool], None]) -> None:
        try:
            for device, ready in self._ready.items():
                stream = _stream(device)
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
            for device in self._ready:  # no copy may go on when the memory is reused
                torch.cuda.synchronize(device)
        finally:
            self._under_way.set()
        try:
            done(self._failure is None and not self._changed)
        except Exception as error:
            self._failure = error

    def _judge(self) -> None:
        """Check whether any tensor has changed. This is done once, as changes after the copy do no harm."""
        with self._lock:
            if self._changed is None:
                self._changed = _versions(self._counted) != self._versions
                self._counted.clear()

    def _raise(self) -> None:
        if self._failure is not None:
            # Other errors may be those of a broken GPU.
            kind = InvalidInput if isinstance(self._failure, InvalidInput) else ElasticError
            raise kind(f"the state could not be copied: {self._failure}") from self._failure
        if self._changed:
            raise InvalidInput(
                "weights or optimizer states have changed outside of an optimizer's step while they were copied: with "
                "checkpoint.overlap they must not. Turn it off and run again, to go on from the checkpoint before"
            )


def wait_before_steps(optimizers: Iterable[Any], wait: Callable[[], None]) -> list[Any] | None:
    """Make each of these optimizers call `wait` before its step. Returns handles that end it.

    None if one has no hooks for that.
    """

    def before(*_: Any) -> None:
        wait()

    inner = [each for optimizer in optimizers for each in innermost(optimizer)]
    # An optimizer that does not call torch's `__init__` has no hooks.
    if not all(hasattr(optimizer, "_optimizer_step_pre_hooks") for optimizer in inner):
        return None
    return [optimizer.register_step_pre_hook(before) for optimizer in inner]


@cache  # torch has a few streams, and hands out each of them several times: a new one might be busy
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of all copies from this GPU."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor._version for tensor in tensors]


def _recorded(device: torch.device) -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.current_stream(device).record_event()
    return event
