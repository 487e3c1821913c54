"""Phases, epochs and passes of a loop with Accelerate: killed anywhere, it ends as an undisturbed one, to the bit."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.runs.attempts import attempt, to_the_end
from tests.unit.runtime.session.test_phases_and_epochs import Fate

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)

POLICY = CheckpointPolicy(every_steps=3)


def script(fate: Fate, told: list[Any], *, scratch: bool = False) -> Callable[[Session], str]:
    """Three phases, with gradients accumulated of other numbers of batches in each."""

    def run_it(session: Session) -> str:
        from accelerate import Accelerator

        from airflow_elastic.frameworks import accelerate

        accelerate.init = lambda: session  # type: ignore[assignment]
        accelerator = Accelerator(cpu=True)
        run = accelerate.ElasticRun(accelerator)
        model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.05)
        schedule: Any = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)

        def batch(x: torch.Tensor) -> None:
            with accelerator.accumulate(model):
                run.backward((model(x) ** 2).mean())
                optimizer.step()
                optimizer.zero_grad()
            if not session.in_scratch:
                fate.point()
            run.step()

        data = DataLoader(TensorDataset(torch.randn(22, 4)), batch_size=2)
        found = run.resumed.notes["found"] if run.resumed else None

        def trial() -> None:
            if scratch:
                with run.scratch(model, optimizer, schedule):
                    for _ in run.epochs(1):
                        for (x,) in run.loader(data, global_batch=8):
                            batch(x)
                    schedule.step()

        trial()
        with run.phase("one") as phase:
            run.restore(model, optimizer, schedule)
            run.note(found=7)
            for epoch in run.epochs(2):
                for (x,) in run.loader(data, global_batch=4):
                    batch(x)
                trial()
                schedule.step()
                told.append(("one", epoch, found))
            phase.record(steps=phase.steps)
        with run.phase("two"):
            for (x,) in run.loader(data, global_batch=10, epochs=2):
                batch(x)
        trial()
        with run.phase("three") as phase:
            for _ in run.epochs(1):
                for (x,) in run.loader(data, global_batch=8):
                    batch(x)
        fate.point()
        assert (run.steps, phase.steps) == (12 + 6 + 3, 3)
        run.finish()
        return repr(
            [
                model.state_dict(),
                optimizer.state_dict(),
                schedule.state_dict(),
                torch.rand(2),
                random.random(),
            ]
        )

    return run_it


@pytest.fixture(autouse=True)
def init_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_elastic.frameworks import accelerate

    monkeypatch.setattr(accelerate, "init", accelerate.init)


# Batches are counted: 22 of them are phase one's, 22 phase two's, 11 phase three's.
@pytest.mark.parametrize("kills", [[9], [30], [49], [3, 20, 40, 60]])
def test_it_ends_as_without_a_kill(kills: list[int], tmp_path: Path) -> None:
    whole: list[Any] = []
    undisturbed = attempt(tmp_path / "one", 1, POLICY, script(Fate(), whole))
    assert whole == [("one", 0, None), ("one", 1, None)]
    killed = to_the_end(tmp_path / "two", POLICY, script(Fate(*kills), told := [], scratch=True))
    assert killed == (undisturbed, 1 + len(kills))
    assert all(found == 7 for _, _, found in told[2:])


def test_the_scale_of_gradients_is_put_back_before_anything_is_restored(tmp_path: Path) -> None:
    """`prepare` has made what scales them: a script has no name for it."""

    def scaled(session: Session) -> list[Any]:
        from accelerate import Accelerator

        from airflow_elastic.frameworks import accelerate

        accelerate.init = lambda: session  # type: ignore[assignment]
        accelerator = Accelerator(cpu=True)
        run = accelerate.ElasticRun(accelerator)
        model: Any = torch.nn.Linear(4, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
        accelerator.scaler = scaler  # as Accelerate makes it on a GPU
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        before = scaler.state_dict()
        with run.scratch(model, optimizer):
            accelerator.gradient_state._set_sync_gradients(False)
            scaler.scale(model(torch.ones(1, 4)).sum()).backward()
            scaler.step(optimizer.optimizer)
            scaler.update()
            assert scaler.state_dict() != before
        return [scaler.state_dict() == before, accelerator.sync_gradients]

    assert attempt(tmp_path / "run", 1, POLICY, scaled) == [True, True]
