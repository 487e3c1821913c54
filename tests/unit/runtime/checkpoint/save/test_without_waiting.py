"""Nothing on the way of a save waits for a GPU: not for the loss, not for metrics, and not in the look once a second.

There need not be a GPU. A tensor that says it is on one refuses every call that would wait, and CUDA's events and
streams are stood in for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.tensors.host_numbers import HostNumbers
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.training.saving import SavingWorker, objects

WAITS = {
    "item",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "cpu",
    "numpy",
    "tolist",
    "__array__",
    "__format__",
}


class OnGpu(torch.Tensor):
    """A number that says it is on a GPU."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name in WAITS:
            raise AssertionError(f"{name} waits for the GPU")
        if owner == "is_cuda":
            return True
        if owner == "device":
            return torch.device("cuda", 0)
        if name == "to":
            assert kwargs == {"non_blocking": True}, "the copy waits for the GPU"
            return args[0].as_subclass(torch.Tensor).clone()
        return super().__torch_function__(func, types, args, kwargs or {})


class Event:
    """An event of CUDA that has not happened yet."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def query(self) -> bool:
        return self._gpu.done.is_set()

    def synchronize(self) -> None:
        if threading.current_thread() is self._gpu.training:
            assert self._gpu.done.is_set(), "training waits for the GPU"
        assert self._gpu.done.wait(60)


class Gpu:
    """A GPU that is busy until `done` is set."""

    def __init__(self) -> None:
        self.done, self.training = threading.Event(), threading.current_thread()

    def record_event(self) -> Event:
        return Event(self)


class NoWaiting(TorchDispatchMode):
    """Refuses what reads a tensor's value into Python while the GPU is busy, on the thread that trains."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_read = "_local_scalar_dense" in str(func)
        assert self._gpu.done.is_set() or not is_read, "a tensor's value is read"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()

    def refuse(*_: object) -> None:
        raise AssertionError("training waits for the GPU")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: found)
    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    return found


def number(value: float) -> torch.Tensor:
    return torch.tensor(value).as_subclass(OnGpu)


@contextmanager
def a_heartbeat() -> Iterator[Heartbeat]:
    heartbeat = Heartbeat(RankEnvironment(0, 0, 1, None, 1, 1, None, None), None)
    heartbeat._noted_at = float("-inf")  # a second is over
    yield heartbeat


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "at-once"])
def test_a_save_reads_the_loss_when_it_has_come(tmp_path: Path, gpu: Gpu, overlap: bool) -> None:
    worker, what = SavingWorker(str(tmp_path)), objects(3)
    saver = Saver(
        Collectives(0, 1, None),
        generation=1,
        stage=worker.stage,
        words=worker.words,
        policy=CheckpointPolicy(overlap=overlap),
    )
    if not overlap:
        gpu.done.set()  # such a save waits for the copies of the weights, so the loss has come
    metrics = {"loss": number(0.5), "accuracy": number(0.25), "rate": 3.0, "odd": number(float("nan"))}
    with NoWaiting(gpu):
        assert saver.save(what, 1, Position(), reason="steps", metrics=metrics)
    gpu.done.set()
    saver.join()
    worker.persister.flush()
    assert checkpoints.read(worker.store, 1).metrics == {"loss": 0.5, "accuracy": 0.25, "rate": 3.0}


def test_a_number_on_processors_is_that_of_the_step() -> None:
    loss = torch.tensor(0.5)
    numbers = HostNumbers({"loss": loss, "none": float("inf")})
    loss.fill_(7.0)
    assert numbers.ready
    assert numbers.finite() == {"loss": 0.5}
    with pytest.raises((RuntimeError, ValueError)):
        HostNumbers({"loss": torch.ones(2)})


def test_a_report_has_the_loss_when_it_has_come(gpu: Gpu) -> None:
    with a_heartbeat() as heartbeat:
        heartbeat.stepped(1, Position(), number(0.5), {"accuracy": number(0.25)})
        assert heartbeat.words[shared_page.LOSS_TOLD] == 0
        heartbeat._noted_at = float("-inf")
        heartbeat.stepped(2, Position(), number(0.4), {})  # this one would come too late as well
        assert heartbeat.words[shared_page.LOSS_TOLD] == 0
        gpu.done.set()
        heartbeat.stepped(3, Position(), number(0.3), {})
        assert (heartbeat.words[shared_page.LOSS_TOLD], heartbeat.words[shared_page.LOSS]) == (1, 0.5)
        heartbeat._noted_at = float("-inf")
        heartbeat.stepped(4, Position(), number(float("inf")), {})
        assert heartbeat.words[shared_page.LOSS_TOLD] == 2 + shared_page.ODD_LOSSES.index("Infinity")
