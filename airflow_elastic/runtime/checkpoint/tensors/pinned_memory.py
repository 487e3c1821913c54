"""Pin memory, so that GPUs copy to it at full speed and in the background. A gigabyte takes 0.06 s.

A thread does this before the first save needs the memory. If the driver refuses, copies are slower, but still correct.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from typing import Any

import torch

log = logging.getLogger(__name__)

#: From the headers of CUDA: all GPUs may use the memory; calls of this thread do not disturb a capture of another one.
_PORTABLE, _RELAXED = 1, 2

_pinned: dict[int, memoryview] = {}  # by address; pinned memory must stay mapped
_lock = threading.Lock()  # a save waits for a thread that pins already


def pin(memory: memoryview, device: torch.device) -> None:
    """Pin the whole mapping that this is a part of, unless it is pinned.

    Args:
        memory: a part of a mapping.
        device: a GPU that this process uses: CUDA would take memory of another one.
    """
    whole = memoryview(memory.obj)
    address = torch.frombuffer(whole, dtype=torch.uint8).data_ptr()
    with _lock:
        if address in _pinned:
            return
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            error = int(runtime.cudaHostRegister(address, len(whole), _PORTABLE))
            if error:
                with contextlib.suppress(RuntimeError):  # CUDA returns the same error from the next call
                    torch.zeros(1, device=device)
        _pinned[address] = whole
    if error:
        log.warning("memory for saves cannot be pinned (CUDA error %d): saves take longer", error)


def may_pin_beside_training() -> bool:
    """Make this thread's calls of CUDA harmless to training, which may capture a CUDA graph just now.

    By default CUDA ends such a capture if any thread allocates or pins memory. torch pins its own memory in this way,
    too. Returns False where CUDA's library is not found: then the first saves pin.
    """
    version = str(torch.version.cuda).partition(".")[0]
    try:
        runtime = ctypes.CDLL(f"libcudart.so.{version}")  # torch has loaded it
        return int(runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))) == 0
    except (OSError, AttributeError):
        return False
