"""What is used of the NVIDIA GPUs of this machine, by the driver's own library (NVML). Needs nvidia-ml-py."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """What is used of some GPUs.

    Attributes:
        utilisation: the share of time in which they compute, from 0 to 1; the mean of all.
        memory_bytes: their memory in use, together.
    """

    utilisation: float
    memory_bytes: int


class GpuMeter:
    """Measures GPUs. Where there is none, each call returns None at once."""

    def __init__(self) -> None:
        self._nvml: Any = _library()

    def measure(self, pids: Collection[int] | None) -> GpuUsage | None:
        """What is used of the GPUs on which one of these processes computes; None: of all that this process may use.

        Returns None where there is no such GPU, or the driver does not answer.
        """
        if self._nvml is None:
            return None
        try:
            devices = [one for one in self._devices() if pids is None or self._is_used(one, pids)]
            if not devices:
                return None
            shares = [self._nvml.nvmlDeviceGetUtilizationRates(one).gpu / 100 for one in devices]
            used = [self._nvml.nvmlDeviceGetMemoryInfo(one).used for one in devices]
        except self._nvml.NVMLError as error:
            log.debug("the GPUs cannot be measured: %s", error)
            return None
        return GpuUsage(sum(shares) / len(shares), sum(used))

    def idle(self) -> int:
        """How many GPUs that this process may use have no process that computes on them. 0 where there is no driver."""
        if self._nvml is None:
            return 0
        count = 0
        for device in self._devices():
            with contextlib.suppress(self._nvml.NVMLError):
                count += not self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        return count

    def _devices(self) -> list[Any]:
        nvml, visible = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")
        names = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
        found = []
        for i in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(i)
            if (
                names is None
                or str(i) in names
                or any(nvml.nvmlDeviceGetUUID(device).startswith(n) for n in names)
            ):
                found.append(device)
        return found

    def _is_used(self, device: Any, pids: Collection[int]) -> bool:
        with contextlib.suppress(self._nvml.NVMLError):
            return any(one.pid in pids for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(device))
        return False


def _library() -> Any:
    """The library, at work; None where there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
