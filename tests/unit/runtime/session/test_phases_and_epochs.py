"""Loops over epochs, and phases: killed anywhere, a run ends with the bits of an undisturbed one."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.attempts import Killed, attempt, to_the_end

QUICK = settings(
    max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
LONG = settings(QUICK, max_examples=60, derandomize=False, print_blob=True)


class Fate:
    """Kills at these moments, counted over all attempts, where `point` is called."""

    def __init__(self, *moments: int) -> None:
        self._moments, self._clock = set(moments), itertools.count()

    def point(self) -> None:
        if next(self._clock) in self._moments:
            raise Killed


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name, "run")


def net(*, dropout: float = 0.2) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(
    run: Session, model: Any, optimizer: Any, x: torch.Tensor, fate: Fate, schedule: Any = None
) -> torch.Tensor:
    loss: torch.Tensor = run.weight * (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if schedule is not None:
        schedule.step()
    fate.point()
    run.step(loss, length=float(len(x)))
    fate.point()
    return loss


def digest(*objects: Any) -> str:
    return repr([one.state_dict() for one in objects]) + repr((torch.rand(2), random.random()))


def epochs(
    fate: Fate, told: list[int], *, form: str = "epochs", saves: bool = False
) -> Callable[[Session], str]:
    """A loop with all that people do once an epoch: a schedule, an evaluation, random numbers, a log."""

    def script(run: Session) -> str:
        model, optimizer = net()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        average = torch.optim.swa_utils.AveragedModel(model)
        run.restore(model, optimizer, schedule=schedule, average=average)
        data = TensorDataset(torch.randn(22, 4))  # made of the luck of a run that begins

        def end(epoch: int) -> None:
            fate.point()
            schedule.step()
            average.update_parameters(model)
            model.eval()
            model(torch.rand(3, 4)).sum()
            model.train()
            fate.point()
            if saves:
                run.save()
            told.append(epoch)

        if form == "epochs":
            for epoch in run.epochs(3):
                fate.point()
                for (x,) in run.loader(data, global_batch=8):
                    train(run, model, optimizer, x, fate)
                end(epoch)
        else:
            for epoch in range(3):
                for (x,) in run.loader(data, global_batch=8, epochs=epoch + 1):
                    train(run, model, optimizer, x, fate)
                end(epoch)
        fate.point()
        run.finish(loss=0.0)
        fate.point()
        return digest(model, optimizer, schedule, average)

    return script


POLICIES = st.one_of(
    st.builds(CheckpointPolicy, every_steps=st.integers(1, 5)),
    st.builds(CheckpointPolicy, every_steps=st.just(3), memory_every_steps=st.just(1)),
)
KILLS = st.lists(st.integers(0, 60), min_size=1, max_size=4)
EVERY_3, MEMORY = CheckpointPolicy(every_steps=3), CheckpointPolicy(every_steps=3, memory_every_steps=1)


def undisturbed(script: Callable[[Fate, list[int]], Callable[[Session], str]]) -> str:
    with folder() as run:
        result = attempt(run, 1, CheckpointPolicy(every_steps=4), script(Fate(), []))
        assert result is not None
        return result


def check_epochs(form: str, policy: CheckpointPolicy, kills: list[int]) -> None:
    expected = undisturbed(lambda fate, told: epochs(fate, told, form=form))
    with folder() as run:
        told: list[int] = []
        result, attempts = to_the_end(run, policy, epochs(Fate(*kills), told, form=form))
        assert result == expected
        if form == "epochs" and attempts == 1:
            assert told == [0, 1, 2]


@pytest.mark.parametrize("form", ["epochs", "range"])
@given(policy=POLICIES, kills=KILLS)
@QUICK
def test_what_is_done_once_an_epoch(form: str, policy: CheckpointPolicy, kills: list[int]) -> None:
    check_epochs(form, policy, kills)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["epochs", "range"])
@given(policy=POLICIES, kills=KILLS)
@LONG
def test_what_is_done_once_an_epoch_at_length(form: str, policy: CheckpointPolicy, kills: list[int]) -> None:
    check_epochs(form, policy, kills)


def test_an_epoch_that_is_over_is_not_gone_through_again() -> None:
    """What is saved in the body's end is saved behind it."""
    told: list[int] = []
    # Points: 0 is the head of epoch 0; 3 steps have two each; two in its tail; so 9 is the head of epoch 1.
    script, policy = epochs(Fate(11, 21), told, saves=True), CheckpointPolicy(every_steps=100)
    with folder() as run:
        result, attempts = to_the_end(run, policy, script)
        assert (told, attempts) == ([0, 1, 2], 3)
        assert result == undisturbed(epochs)


def test_a_save_whose_end_of_an_epoch_does_not_come_is_made_with_the_next_step(tmp_path: Path) -> None:
    """In a phase whose loop asks for one epoch after the other, as those of frameworks do: each could be the last."""
    policy = CheckpointPolicy(every_steps=3)

    def script(run: Session) -> str | None:
        model, optimizer = net()
        with run.phase("one"):
            run.restore(model, optimizer)
            for epoch in range(4):
                for (x,) in run.loader(TensorDataset(torch.ones(12, 4)), global_batch=4, epochs=epoch + 1):
                    train(run, model, optimizer, x, Fate())
                    if run.steps == 11:
                        raise Killed
        return None

    assert attempt(tmp_path / "run", 1, policy, script) is None
    assert checkpoints.steps(open_store(str(tmp_path / "run"))) == [4, 7, 10]


def phases(fate: Fate, told: list[str]) -> Callable[[Session], str]:
    """A teacher, its student, and a rest without data of ours; each has objects, data and a schedule of its own."""

    def script(run: Session) -> str:
        with run.phase("teach") as phase:
            teacher, optimizer = net()
            average = torch.optim.swa_utils.AveragedModel(teacher)
            run.restore(teacher, optimizer, average=average)
            data = TensorDataset(torch.randn(18, 4))
            for _ in run.epochs(2):
                for (x,) in run.loader(data, global_batch=8):
                    train(run, teacher, optimizer, x, fate)
            if not phase.done:
                told.append("teach")
                fate.point()
                average.update_parameters(teacher)
                torch.rand(1)
                phase.record(weight=float(teacher[0].weight.sum()))
            fate.point()
        fate.point()
        with run.phase("learn") as phase:
            student, optimizer = net()
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            run.restore(student, optimizer, schedule=schedule)
            more = TensorDataset(torch.randn(23, 4))
            for (x,) in run.loader(more, global_batch=5, epochs=2, seed=3):
                with torch.no_grad():
                    x = x + teacher(x)
                train(run, student, optimizer, x, fate, schedule)
            phase.record(steps=phase.steps)
        with run.phase("rest") as phase:
            run.restore(student, optimizer, teacher=average)
            while phase.steps < 3:
                train(run, student, optimizer, torch.rand(3, 4), fate)
            told.append("rest")
        fate.point()
        run.finish()
        fate.point()
        return digest(teacher, average, student, optimizer, schedule)

    return script


def check_phases(policy: CheckpointPolicy, kills: list[int]) -> None:
    expected = undisturbed(phases)
    with folder() as run:
        told: list[str] = []
        result, _ = to_the_end(run, policy, phases(Fate(*kills), told))
        assert result == expected


@given(policy=POLICIES, kills=KILLS)
@example(policy=MEMORY, kills=[16])
@example(policy=CheckpointPolicy(every_steps=1), kills=[26])
@QUICK
def test_phases_end_as_without_a_kill(policy: CheckpointPolicy, kills: list[int]) -> None:
    check_phases(policy, kills)


@pytest.mark.slow
@given(policy=POLICIES, kills=KILLS)
@LONG
def test_phases_end_as_without_a_kill_at_length(policy: CheckpointPolicy, kills: list[int]) -> None:
    check_phases(policy, kills)


def same_objects(fate: Fate, told: list[int]) -> Callable[[Session], str]:
    """One model through several phases, restored once: before them, or in the first."""
    outside = bool(told)

    def script(run: Session) -> str:
        model, optimizer = net()
        if outside:
            run.restore(model, optimizer)
        for fold, rate in enumerate((0.05, 0.01, 0.02)):
            with run.phase(f"stage {fold}") as phase:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                if not outside and not fold:
                    run.restore(model, optimizer)
                data = TensorDataset(torch.randn(10 + fold, 4))
                for epoch in run.epochs(2):
                    for (x,) in run.loader(data, global_batch=4, epoch=epoch):
                        train(run, model, optimizer, x, fate)
                    for group in optimizer.param_groups:
                        group["lr"] *= 0.5
                phase.record(rate=optimizer.param_groups[0]["lr"])
                assert phase.steps == 6
                assert run.steps == 6 * (fold + 1)
        run.finish()
        fate.point()
        return digest(model, optimizer)

    return script


def check_same_objects(outside: list[int], policy: CheckpointPolicy, kills: list[int]) -> None:
    expected = undisturbed(lambda fate, _: same_objects(fate, outside))
    with folder() as run:
        result, _ = to_the_end(run, policy, same_objects(Fate(*kills), outside))
        assert result == expected


RESTORED = pytest.mark.parametrize("outside", [[], [1]], ids=["in the first", "before them"])


@RESTORED
@given(policy=POLICIES, kills=KILLS)
@example(policy=MEMORY, kills=[6])
@example(policy=EVERY_3, kills=[6])
@QUICK
def test_phases_of_the_same_objects(outside: list[int], policy: CheckpointPolicy, kills: list[int]) -> None:
    check_same_objects(outside, policy, kills)


@pytest.mark.slow
@RESTORED
@given(policy=POLICIES, kills=KILLS)
@LONG
def test_phases_of_the_same_objects_at_length(
    outside: list[int], policy: CheckpointPolicy, kills: list[int]
) -> None:
    check_same_objects(outside, policy, kills)


def test_results_are_there_when_a_phase_is_passed_by(tmp_path: Path) -> None:
    policy, seen = CheckpointPolicy(every_steps=2), []

    def script(run: Session) -> bool:
        model, optimizer = net()
        with run.phase("one") as phase:
            run.restore(model, optimizer)
            for (x,) in run.loader(TensorDataset(torch.randn(12, 4)), global_batch=4, epochs=1):
                train(run, model, optimizer, x, Fate())
            phase.record(score=run.attempt, words=["a", "b"])
        seen.append((phase.done, phase.results, phase.steps))
        if run.attempt == 1:
            raise Killed
        assert run.resumed is not None
        seen.append((run.resumed.phase, run.resumed.results))
        return True

    to_the_end(tmp_path / "run", policy, script)
    results = {"score": 1, "words": ["a", "b"]}
    assert seen == [(False, results, 3), (True, results, 3), (1, {"one": results})]


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1)

    def first(run: Session) -> bool:
        model, optimizer = net()
        with run.phase("one"):
            run.restore(model, optimizer)
            with pytest.raises(InvalidInput, match="within the phase 'one'"):
                run.phase("two").__enter__()
            with pytest.raises(InvalidInput, match="called within the phase"):
                run.finish()
            with pytest.raises(InvalidInput, match="allowed: the number of all epochs"):
                run.loader(TensorDataset(torch.randn(4, 4)), global_batch=4)
            for _ in run.epochs(1):
                with pytest.raises(InvalidInput, match="called within a loop"):
                    run.epochs(1)
                with pytest.raises(InvalidInput, match="The loader yields the rest of that epoch"):
                    run.loader(TensorDataset(torch.randn(4, 4)), global_batch=4, epochs=5)
                for (x,) in run.loader(TensorDataset(torch.randn(4, 4)), global_batch=4):
                    train(run, model, optimizer, x, Fate())
        with pytest.raises(InvalidInput, match="outside of the run's phases"):
            run.step()
        return True

    def second(run: Session) -> bool:
        with pytest.raises(InvalidInput, match="phase 0 of this run is 'one'"):
            run.phase("other").__enter__()
        model, optimizer = net()
        with run.phase("one"):
            run.restore(model, optimizer)
            with pytest.raises(InvalidInput, match="which is complete"):
                run.step()
        return True

    assert attempt(tmp_path / "run", 1, policy, first)
    assert attempt(tmp_path / "run", 2, policy, second)


def test_ends_of_phases_outlive_retention(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1, keep_last=1)
    assert attempt(tmp_path / "run", 1, policy, same_objects(Fate(), []))
    assert {6, 12, 18} <= set(checkpoints.steps(open_store(str(tmp_path / "run"))))


def test_notes_come_back(tmp_path: Path) -> None:
    def script(run: Session) -> bool:
        if run.attempt == 2:
            assert run.resumed is not None
            assert run.resumed.notes == {"groups": ["head", "body"]}
            return True
        model, optimizer = net()
        run.restore(model, optimizer)
        with pytest.raises(InvalidInput, match="plain JSON"):
            run.note(model=model)
        run.note(groups=["head"], other=1)
        run.note(groups=["head", "body"], other=None)
        run.step()
        raise Killed

    to_the_end(tmp_path / "run", CheckpointPolicy(every_steps=1), script)
