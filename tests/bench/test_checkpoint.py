"""What a save costs training, and how long it takes until it counts; against torch's own ways, and what is possible.

Everything in one process and in turns, on the same state: so what else the machine does hits all of them alike.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.runtime.checkpoint.restore.nearby import WorkerCache
from airflow_elastic.runtime.checkpoint.restore.restore import Restorer
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.testing.ports import free_port
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.models import TENSORS, layers, stepped
from tests.bench.support.worlds import of_ranks
from tests.support.training.saving import SavingWorker

MEGABYTES = count("MEGABYTES", 1024)
ROUNDS = count("ROUNDS", 5)
DEVICE = torch.device(os.environ.get("ELASTIC_BENCH_DEVICE", "cpu"))


def build() -> Stateful:
    """A model with its optimizer, of the size asked for, on the device asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    return stepped(layers(MEGABYTES).to(DEVICE))


def size_of(objects: Stateful) -> int:
    tensors = [*objects.model.parameters()]
    for one in objects.optimizers[0].state.values():
        tensors += [value for value in one.values() if torch.is_tensor(value)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def timed(call: Callable[[], Any]) -> float:
    """Seconds that it takes, when the disk has nothing left to do for whoever had his turn before."""

    def whole() -> None:
        call()
        settle()

    return returned(whole)


def returned(call: Callable[[], Any]) -> float:
    """The same until it returns, whatever a GPU still does of what it was told."""
    os.sync()
    settle()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def settle() -> None:
    """Wait for what a GPU still has to do."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def memory_for(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A state as one tensor where the model is, and memory in use on the CPU: one copy between them is the floor.

    Of floats, as torch copies bytes slower; pinned where the model is on a GPU.
    """
    source, target = torch.ones(size // 4, device=DEVICE), torch.ones(size // 4)
    return source, target.pin_memory() if DEVICE.type == "cuda" else target


def raw_write(path: Path, data: memoryview) -> None:
    """Into a new file: what was there before must not be lost, so its memory and its place on the disk are no help."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def raw_read(path: Path, target: torch.Tensor) -> None:
    """One pass over a file that is in the page cache, as a restore has to make at the least."""
    with path.open("rb") as file:
        mapped_read(file.fileno(), target)


def mapped_read(descriptor: int, target: torch.Tensor) -> None:
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    target.copy_(torch.frombuffer(mapped, dtype=target.dtype, count=target.numel()))


def reusing(options: StagingOptions) -> DefaultStager:
    """A stager that keeps its memory from save to save: torch 2.11's lets go of it with every one, and cannot go on."""
    stager = DefaultStager(options)
    stager._state_dict_stager.close = lambda: None  # type: ignore[method-assign]
    return stager


@contextmanager
def torchs_asynchronous(flat: dict[str, Any], folder: Path) -> Iterator[dict[str, Callable[[], float]]]:
    """torch's asynchronous saves: each waits until training may go on, and hands back how long that took."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0"}.items():
        os.environ[name] = value
    torch.distributed.init_process_group("gloo", world_size=1, rank=0)
    gpu = DEVICE.type == "cuda"  # there its best is pinned memory
    reused = {
        "THREAD": reusing(StagingOptions(gpu, False, False, gpu)),
        "PROCESS": reusing(StagingOptions(gpu, True, True, gpu)),
    }

    def save(how: str, stager: DefaultStager | None) -> float:
        began = time.perf_counter()
        kind = AsyncCheckpointerType[how]
        answer: Any = dcp.async_save(
            flat, checkpoint_id=str(folder), async_checkpointer_type=kind, async_stager=stager
        )
        if staged := getattr(answer, "staging_completion", None):
            staged.result()  # before that a step would tear what is saved
        waited = time.perf_counter() - began
        getattr(answer, "upload_completion", answer).result()
        return waited

    try:
        yield {
            "DCP async_save, as it is": partial(save, "THREAD", None),
            "DCP async_save, memory reused": partial(save, "THREAD", reused["THREAD"]),
            "DCP async_save, in a process": partial(save, "PROCESS", reused["PROCESS"]),
        }
    finally:
        for stager in reused.values():
            stager.close()
        torch.distributed.destroy_process_group()


def waiting_for_saves(folder: Path) -> tuple[Stateful, SavingWorker, torch.Tensor, torch.Tensor]:
    """What is saved, who saves it, its memory being there, and the two sides of the memcpy that is the floor."""
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB, {TENSORS} parameters: how long training waits for a save, {ROUNDS} rounds")
    worker = SavingWorker(str(folder / "run"), keep_last=1)
    provided(worker, objects)
    return objects, worker, *memory_for(size)


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_save_stops_training_for_less_than_torchs_own(tmp_path: Path) -> None:
    objects, worker, source, target = waiting_for_saves(tmp_path)
    figures: dict[str, list[float]] = {}
    with torchs_asynchronous(flat_state(objects), tmp_path / "dcp") as others:
        for number in range(ROUNDS + 1):
            if number == 1:
                figures.clear()  # the first round makes memory, and does not count
            figures.setdefault("memcpy", []).append(timed(lambda: target.copy_(source)))
            figures.setdefault("ours", []).append(stall(worker, objects, number))
            for name, other in others.items():
                figures.setdefault(name, []).append(other())
    for name, seconds in figures.items():
        print(f"  {name:30} {spread(seconds)}  {median(seconds) / median(figures['memcpy']):.2f}x memcpy")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_save_alone(tmp_path: Path) -> None:
    """For states of many gigabytes, of which torch's own ways take minutes."""
    objects, worker, source, target = waiting_for_saves(tmp_path)
    copied, saved = [], []
    for number in range(ROUNDS + 2):
        copied.append(timed(lambda: target.copy_(source)))
        saved.append(stall(worker, objects, number))
    # The first two make memory, and do not count: on a GPU the first save into each slot pins it.
    print(f"  memcpy                         {spread(copied[2:])}")
    print(f"  training waits                 {spread(saved[2:])}")
    verdict("training stands still, over one memcpy", median(saved[2:]) / median(copied[2:]), 1.1, "x")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_save_of_ranks_that_share_a_model(tmp_path: Path) -> None:
    """Each copies its part of every tensor, cut into bands for other world sizes; small parts cost as many calls."""
    heading(f"a model sharded by FSDP2: how long its ranks wait for a save, {ROUNDS} rounds")
    for world, megabytes in ((2, 2 * MEGABYTES), (2, MEGABYTES), (3, MEGABYTES)):
        run = tmp_path / f"{world}-{megabytes}"
        figures = of_ranks(world, "stall", run, ROUNDS, megabytes)
        each = f"{world} ranks, {figures['bytes'] / 1e9:.3f} GB each"
        print(f"  {each}: memcpy, at the same time  {spread(figures['copy'])}")
        print(f"                          saved                     {spread(figures['save'])}")
        print(f"                          of that, laid out         {spread(figures['plan'])}")
        verdict(
            f"{each}: they stand still, over one memcpy each",
            median(figures["save"]) / median(figures["copy"]),
            1.1,
            "x",
        )


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_save_that_is_copied_while_training_goes_on(tmp_path: Path) -> None:
    """A training step that takes as long as several copies: how much longer are the two steps around a save?"""
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB: what a save costs whose copy overlaps with the next step, {ROUNDS} rounds")
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1)
    policy = CheckpointPolicy(overlap=True)
    saver = Saver(
        Collectives(0, 1, None), generation=1, stage=worker.stage, words=worker.words, policy=policy
    )
    saver.attend(objects.optimizers)
    provided(worker, objects)
    source, target = memory_for(size)
    side = 8192 if DEVICE.type == "cuda" else 1024
    matrix, out = torch.rand(side, side, device=DEVICE), torch.empty(side, side, device=DEVICE)
    step = objects.optimizers[0].step  # with no gradients it does nothing but wait
    objects.optimizers[0].zero_grad()

    def train() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix, out=out)

    figures: dict[str, list[float]] = {}
    for number in range(ROUNDS + 1):
        if number == 1:
            figures.clear()  # the first round makes memory, and does not count
        figures.setdefault("memcpy", []).append(timed(lambda: target.copy_(source)))
        alone = timed(train)
        began = returned(lambda n=number: saver.save(objects, n + 1, Position(), reason="steps", metrics={}))  # type: ignore[misc]
        beside, waited = timed(train), timed(step)
        figures.setdefault("a step alone", []).append(alone)
        figures.setdefault("save returns after", []).append(began)
        figures.setdefault("the optimizer waits", []).append(waited)
        figures.setdefault("all that it costs", []).append(began + waited + beside - alone)
        saver.join()
        worker.persister.flush()
    for name, seconds in figures.items():
        print(f"  {name:30} {spread(seconds)}  {median(seconds) / median(figures['memcpy']):.2f}x memcpy")
    stalled = median(
        [a + b for a, b in zip(figures["save returns after"], figures["the optimizer waits"], strict=True)]
    )
    verdict("training stands still, over one memcpy", stalled / median(figures["memcpy"]), 0.1, "x")


def stall(worker: SavingWorker, objects: Stateful, step: int) -> float:
    """How long training waits for a save, which is written after that."""
    waited = timed(partial(worker.saver.save, objects, step, Position(), reason="script", metrics={}))
    worker.persister.flush()
    return waited


def provided(worker: SavingWorker, objects: Stateful) -> None:
    """Its memory is there, as after a training's first step."""
    mapping = worker.saver.announce(objects)
    worker.persister.provide()
    mapping.join()


def flat_state(objects: Stateful) -> dict[str, Any]:
    flat = dict(objects.model.state_dict().items())
    states = enumerate(objects.optimizers[0].state.values())
    return flat | {f"{i}.{name}": value for i, one in states for name, value in one.items()}


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_saving(tmp_path: Path) -> None:
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB in {3 * TENSORS} tensors and more, one rank, {ROUNDS} rounds")
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1)
    source, target = memory_for(size)
    flat = flat_state(objects)
    figures: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        figures.setdefault(name, []).append(seconds)

    def ours(step: int) -> None:
        worker.saver.save(objects, step, Position(), reason="script", metrics={})

    def torchs(folder: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # that there is but one process
            dcp.save(flat, checkpoint_id=str(folder), no_dist=True)

    mapping = worker.saver.announce(objects)
    print(f"  memory provided in the background within {timed(worker.persister.provide):.3f} s")
    print(f"  and mapped within               {timed(mapping.join):.3f} s")
    print(f"  the first save                  {timed(partial(ours, 1)):.3f} s")
    worker.persister.flush()
    for number in range(ROUNDS + 1):
        if number == 1:
            figures.clear()  # the first round makes memory, and does not count
        note("memcpy", timed(lambda: target.copy_(source)))
        note("ours: training waits", timed(partial(ours, number + 2)))
        note("ours: then committed, and the one before removed", timed(worker.persister.flush))
        note("torch.save", timed(lambda: torch.save(flat, tmp_path / "torch.pt")))
        note("DCP save", timed(partial(torchs, tmp_path / "dcp")))
        # Over what is overwritten next: what differs from the first row is the memory that the machine has handed out.
        older = min(worker.node.slots.of[0], key=lambda one: one.finished_at).data(source.nbytes)
        slots_memory = torch.frombuffer(older, dtype=source.dtype)
        note("memcpy into a slot's memory", timed(partial(slots_memory.copy_, source)))
        shutil.rmtree(tmp_path / "dcp")
    for name, seconds in figures.items():
        print(f"  {name:30} {spread(seconds)}")
    stall, copy = median(figures["ours: training waits"]), median(figures["memcpy"])
    verdict("what training waits, over one memcpy of the same bytes", stall / copy, 1.1, "x")
    there = median(figures["memcpy into a slot's memory"])
    print(f"  what training waits, over one memcpy into the same memory: {stall / there:.2f}x")


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source", ["file", "memory"])
def test_restoring(tmp_path: Path, source: str) -> None:
    """By turns who comes first; and as often again of the last one: what was just written is often slower to read."""
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB restored from a {source}, one rank, {ROUNDS} rounds")
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1)
    target = torch.ones(size // 4, device=DEVICE)
    near = worker.stage if source == "memory" else None
    room = WorkerCache(tmp_path / "room", 1)
    restorer = Restorer(worker.store, Collectives(0, 1, None), attempt=2, room=room, stage=near)
    names, steps = ("one mmap read", "restored, verified"), count_from(1)
    for when, saves in (("just written", ROUNDS + 1), ("there for a while", 1)):
        figures: dict[str, list[float]] = {name: [] for name in names}
        for number in range(ROUNDS + 1):
            if number < saves:
                worker.saver.save(objects, next(steps), Position(), reason="script", metrics={})
                worker.persister.flush()
            (file,) = tmp_path.glob("run/checkpoints/data/**/*.bin")
            slot = max(worker.node.slots.of[0], key=lambda one: one.finished_at).fileno()
            floor = partial(mapped_read, slot, target) if near else partial(raw_read, file, target)
            for name in sorted(names, reverse=number % 2 == 0):
                seconds = timed(floor if name == names[0] else partial(restorer.restore, objects))
                if number > 0:  # the first round makes memory, and does not count
                    figures[name].append(seconds)
        for name, spent in figures.items():
            print(f"  {when}: {name:30} {spread(spent)}")
        read, restored = map(median, figures.values())
        verdict(f"restored from a {source}, over one mmap read of it, {when}", restored / read, 1.2, "x")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_committing(tmp_path: Path) -> None:
    """By turns, now one first and now the other: what a disk can take depends on what it has just been given."""
    objects = build()
    size = size_of(objects)
    heading(f"{size / 1e9:.3f} GB: from memory to a checkpoint that counts, {ROUNDS} rounds")
    worker = SavingWorker(str(tmp_path / "run"), keep_last=1000)
    data, raw, new = torch.ones(size, dtype=torch.uint8).numpy().data, tmp_path / "raw", tmp_path / "raw, new"
    figures: dict[str, list[float]] = {"committed, with checksums": [], "raw write + fsync": []}
    for number in range(ROUNDS + 1):
        worker.saver.save(objects, number, Position(), reason="script", metrics={})
        for name in sorted(figures, reverse=number % 2 == 0):
            if name == "raw write + fsync":
                seconds = timed(lambda: raw_write(new, data))
                new.replace(raw)
            else:
                seconds = timed(worker.persister.flush)
                checkpoint_retention.prune(worker.store, CheckpointPolicy(keep_last=1))
            if number > 0:
                figures[name].append(seconds)
    for name, spent in figures.items():
        print(f"  {name:30} {spread(spent)}")
    committed, floor = map(median, figures.values())
    verdict("committed, over a raw write and fsync", committed / floor, 1.05, "x")


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_dlrovers_flash_checkpoint(tmp_path: Path) -> None:
    """The same bytes through DLRover's saver, in an interpreter of its own, as it is installed there."""
    interpreter = os.environ.get("ELASTIC_TEST_DLROVER")
    if not interpreter:
        pytest.skip("set ELASTIC_TEST_DLROVER to a Python that has dlrover and torch to run this")
    heading(f"{MEGABYTES / 1e3:.3f} GB through DLRover's flash checkpoint, {ROUNDS} rounds")
    script = Path(__file__).with_name("scripts") / "flash.py"
    command = [interpreter, str(script), str(tmp_path), str(ROUNDS), str(MEGABYTES), str(DEVICE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    figures: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    for name, seconds in figures.items():
        print(f"  {name:30} {spread(seconds)}  {median(seconds) / median(figures['memcpy']):.2f}x memcpy")
