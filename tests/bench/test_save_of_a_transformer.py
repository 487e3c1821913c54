"""What a save costs the training of a transformer, from the first save on, and what is done before its copy.

Real steps with a loss, which take launching, in turns: without a save, with one, and with one that knows nothing of the
save before, like all saves once. On a GPU its own clock measures, and nothing waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from airflow_elastic.runtime.checkpoint.save.repeated_layout import RepeatedLayout
from airflow_elastic.runtime.checkpoint.save.save import Position, Saver
from airflow_elastic.runtime.checkpoint.save.stateful import Stateful
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.models import Transformer
from tests.bench.test_checkpoint import DEVICE, ROUNDS, memory_for, provided, size_of, timed
from tests.support.training.saving import SavingWorker

ON_GPU = DEVICE.type == "cuda"
EVERY = count("EVERY_STEPS", 20)
LAYERS = count("LAYERS", 24)
WIDTH = count("WIDTH", 1024 if ON_GPU else 128)
BATCH, TOKENS = count("BATCH", 8 if ON_GPU else 2), count("TOKENS", 1024 if ON_GPU else 64)
WORDS = 50257 if ON_GPU else 1000

#: The goals: a save over one memcpy, the same of the first two saves of a run, and throughput lost in percent.
GOAL, FIRST_GOAL, LOST_GOAL = 0.1, 0.2, 0.3


class Training:
    """A transformer in training, and the saver of its rank."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(5)
        torch.set_num_threads(1)
        self.model = Transformer(LAYERS, WIDTH, WORDS, TOKENS).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.words = torch.randint(0, WORDS, (BATCH, TOKENS + 1), device=DEVICE)
        self.worker = SavingWorker(str(folder), keep_last=1)
        self.saver = Saver(
            Collectives(0, 1, None),
            generation=1,
            stage=self.worker.stage,
            words=self.worker.words,
            policy=CheckpointPolicy(overlap=True),
        )
        self.objects = Stateful(self.model, (self.optimizer,), {})
        self.saver.attend(self.objects.optimizers)
        self.saves = 0

    def step(self) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16) if ON_GPU else nullcontext():
            loss = self.model.loss(self.words)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def save(self, loss: torch.Tensor, *, anew: bool) -> float:
        """Seconds until training may go on."""
        self.saves += 1
        began = time.perf_counter()
        if anew:
            self.saver._layouts = RepeatedLayout(self.saver._lay_out)
        metrics = {"loss": float(loss) if anew else loss}
        assert self.saver.save(self.objects, self.saves, Position(), reason="steps", metrics=metrics)
        return time.perf_counter() - began

    def period(self, save: Callable[[torch.Tensor], object] | None) -> float:
        """Seconds of so many steps, with a save after the first one. It is written after them, and does not count."""
        clock = Clock()
        for number in range(EVERY):
            loss = self.step()
            if number == 0 and save is not None:
                save(loss)
        spent = clock.seconds()
        self.saver.join()
        self.worker.persister.flush()
        return spent


class Clock:
    """The GPU's clock, or the one on the wall."""

    def __init__(self) -> None:
        if ON_GPU:
            torch.cuda.synchronize()
        self._began = self._now()

    def seconds(self) -> float:
        ended = self._now()
        if not ON_GPU:
            return ended - self._began
        torch.cuda.synchronize()
        return self._began.elapsed_time(ended) / 1000

    @staticmethod
    def _now():  # type: ignore[no-untyped-def]
        if not ON_GPU:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@pytest.mark.bench
@pytest.mark.timeout(3600)
def test_a_save_of_a_transformer(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.saver.check_memory(training.objects)
    training.step()
    provided(training.worker, training.objects)
    size, tensors = size_of(training.objects), len([*training.model.parameters()])
    heading(
        f"a transformer of {tensors} tensors, {size / 1e9:.3f} GB with its states: a save every {EVERY} steps"
    )
    source, target = memory_for(size)
    waits: dict[str, list[float]] = {"as it is": [], "anew": []}
    arms: dict[str, Callable[[torch.Tensor], object] | None] = {
        "none": None,
        "as it is": lambda loss: waits["as it is"].append(training.save(loss, anew=False)),
        "anew": lambda loss: waits["anew"].append(training.save(loss, anew=True)),
    }
    training.period(None)
    first = [training.period(None), training.period(arms["as it is"]), training.period(arms["as it is"])]
    periods: dict[str, list[float]] = {name: [] for name in arms}
    copies = []
    for number in range(ROUNDS):
        copies.append(timed(lambda: target.copy_(source)))
        for name in arms if number % 2 == 0 else reversed(arms):
            periods[name].append(training.period(arms[name]))
    copy, alone = median(copies), median(periods["none"])
    print(f"  a step                         {spread([one / EVERY for one in periods['none']])}")
    print(f"  memcpy                         {spread(copies)}")
    for number, spent in enumerate(first[1:], 1):
        verdict(f"save {number} of the run, over one memcpy", (spent - first[0]) / copy, FIRST_GOAL, "x")
    for name in ("anew", "as it is"):
        costs = [mine - other for mine, other in zip(periods[name], periods["none"], strict=True)]
        print(f"  {name}: returns after     {spread(waits[name], 'ms', 1000)}")
        print(f"  {name}: costs             {spread(costs, 'ms', 1000)}  {median(costs) / copy:.2f}x memcpy")
        lost = median(costs) / alone * 100
        print(f"  {name}: throughput lost   {lost:.2f} %")
    costs = [mine - other for mine, other in zip(periods["as it is"], periods["none"], strict=True)]
    verdict("a save, over one memcpy", median(costs) / copy, GOAL, "x")
    verdict("throughput lost", median(costs) / alone * 100, LOST_GOAL, " %")


@pytest.mark.bench
@pytest.mark.parametrize("wanted", [300, 1000])
def test_what_is_done_before_the_copy(tmp_path: Path, wanted: int) -> None:
    """Names, places and values of a state of AdamW, which has four tensors for each parameter.

    Processor time counts, as nothing waits here: so what else the machine does disturbs less.
    """
    torch.set_num_threads(1)
    model = Transformer((wanted - 4) // 12, 64, 100, 16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model.loss(torch.randint(0, 100, (1, 17))).backward()
    optimizer.step()
    objects, saver = Stateful(model, (optimizer,), {}), SavingWorker(str(tmp_path)).saver
    tensors = len([*model.parameters()])
    heading(f"{tensors} parameters: what a save does before its copy, {ROUNDS} rounds of 10")
    figures: dict[str, list[float]] = {"anew": [], "as it is": []}
    for _ in range(ROUNDS):
        for name, each in figures.items():
            began = time.thread_time()
            for _ in range(10):
                if name == "anew":
                    saver._layouts = RepeatedLayout(saver._lay_out)
                saver._plan(objects)
            each.append((time.thread_time() - began) / 10 / tensors)
    for name, each in figures.items():
        print(f"  {name:10} {spread(each, 'us a parameter', 1e6)}")
    verdict("before the copy", median(figures["as it is"]) * 1e6, 5, " us a parameter")
