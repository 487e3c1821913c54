"""Copying out of a GPU: what ends up in the agent's memory is what the GPU had, whatever it does meanwhile.

What needs no GPU for that runs on processors, too, with less of it: so it is known to be right where there is none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.training.saving import SavingWorker

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Large(torch.nn.Module):
    """Weights of many kinds: long to copy, not contiguous, of several types, conjugated when they are read, empty,
    and one on the CPU.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        times = 8 if device == "cuda" else 1  # a GPU is to be at it for a while
        whole = torch.randn(256 * times, 512 * times, device=device)
        self.long = torch.nn.Parameter(torch.randn(times * times << 20, device=device))
        self.turned = torch.nn.Parameter(whole.t())
        self.channels = torch.nn.Parameter(
            torch.randn(8, 64, 32, 32, device=device).to(memory_format=torch.channels_last)
        )
        self.halved = torch.nn.Parameter(torch.randn(1001, 77, device=device, dtype=torch.bfloat16))
        self.none = torch.nn.Parameter(torch.empty(0, 3, device=device))
        self.here = torch.nn.Parameter(torch.randn(300, 300))
        self.register_buffer("seen", torch.zeros(5, device=device))
        # No optimizer of torch's takes one that is conjugated when it is read, on any device.
        self.waves = torch.nn.Parameter(torch.randn(2049, device=device, dtype=torch.complex64).conj())


def trained(device: str) -> Stateful:
    model = Large(device)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one is not model.waves], lr=0.1)
    return Stateful(model, (optimizer,), {})


def step(objects: Stateful) -> None:
    """Gradients that take a GPU a while, and a step: there all of it is only queued when this returns."""
    model = objects.model
    assert isinstance(model, Large)
    size = 4096 if model.long.is_cuda else 64
    slow = torch.randn(size, size, device=model.long.device)
    for _ in range(20):
        slow = slow @ slow / 64
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) * (1 + slow[0, 0].nan_to_num() * 0).to(parameter)
    objects.optimizers[0].step()


def state(objects: Stateful) -> list[torch.Tensor]:
    kept = [one[name] for one in objects.optimizers[0].state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [tensor.detach().clone() for tensor in [*objects.model.state_dict().values(), *kept]]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("overlap", [False, True], ids=["at-once", "overlap"])
def test_what_is_saved_is_what_the_device_had_while_it_is_kept_busy(
    tmp_path: Path, overlap: bool, device: str
) -> None:
    torch.manual_seed(5)
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1)
    saver = Saver(
        Collectives(0, 1, None),
        generation=1,
        stage=worker.stage,
        words=worker.words,
        policy=CheckpointPolicy(overlap=overlap),
    )
    objects = trained(device)
    saver.attend(objects.optimizers)
    step(objects)
    for number in range(1, 6):
        step(objects)
        expected = state(objects)
        assert saver.save(objects, number, Position(), reason="steps", metrics={})
        step(objects)  # queued at once: with overlap the GPU has to wait by itself
        saver.join()
        worker.persister.flush()
        assert max(checkpoints.steps(worker.store)) == number
        other = trained(device)
        Restorer(
            worker.store, Collectives(0, 1, None), attempt=2, room=WorkerCache(tmp_path / "room", 1)
        ).restore(other)
        restored = state(other)
        assert len(restored) == len(expected)
        for one, its in zip(restored, expected, strict=True):
            assert torch.equal(one, its)


@needs_gpu
def test_memory_that_is_copied_into_is_pinned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker, objects = SavingWorker(str(tmp_path / "run"), keep_last=1), trained("cuda")
    step(objects)
    worker.saver.save(objects, 1, Position(), reason="script", metrics={})
    (slot,) = [slot for slot in worker.stage._slots if slot.age == (1, 1)]
    assert torch.frombuffer(slot.data(4096), dtype=torch.uint8).is_pinned()
    assert not caplog.records


@needs_gpu
def test_memory_is_pinned_before_the_first_save_even_while_a_graph_is_captured(tmp_path: Path) -> None:
    worker, objects = SavingWorker(str(tmp_path / "run"), keep_last=1), trained("cuda")
    step(objects)
    one, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
    mapping = worker.saver.announce(objects)  # waits until its agent has provided memory
    with torch.cuda.graph(graph):
        one += 1
        worker.persister.provide()
        mapping.join()
        one += 1
    for slot in worker.stage._slots:
        assert torch.frombuffer(slot.data(4096), dtype=torch.uint8).is_pinned()
    graph.replay()
    assert one.eq(2).all()
