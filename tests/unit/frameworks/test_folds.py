"""Cross-validation: each fold is a phase with a model, an optimizer and data of its own. Killed in the third, a run
passes by those that are complete, with their results.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.utils.data import TensorDataset

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.runs.attempts import attempt, die_at, to_the_end
from tests.unit.runtime.session.test_phases_and_epochs import (
    EVERY_3,
    KILLS,
    MEMORY,
    POLICIES,
    QUICK,
    Fate,
    digest,
    folder,
    net,
    train,
)

FOLDS, STEPS = 4, 8  # 15 or 16 samples a fold, 4 a step, two epochs

#: Within the third fold, before its first step, and after its last one: Fate's points are two a step.
THIRD = [2 * 2 * STEPS + 5, 2 * 2 * STEPS, 2 * 3 * STEPS - 1]


class Told:
    """What a script has seen, over all attempts."""

    def __init__(self) -> None:
        self.measured: list[int] = []
        self.passed_by: list[tuple[int, int, dict[str, Any]]] = []  # attempt, fold, results


def folds(fate: Fate, told: Told, *, named: bool) -> Callable[[Session], tuple[list[float], str]]:
    def script(run: Session) -> tuple[list[float], str]:
        rows, scores = torch.randn(21, 4), []
        for fold in range(FOLDS):
            held_out = torch.arange(21) % FOLDS == fold
            with run.phase(f"fold {fold}" if named else None) as phase:
                model, optimizer = net()
                run.restore(model, optimizer)
                if not phase.steps:
                    assert not optimizer.state  # nothing of the fold before
                for _ in run.epochs(2):
                    for (x,) in run.loader(TensorDataset(rows[~held_out]), global_batch=4):
                        train(run, model, optimizer, x, fate)
                if phase.done:
                    told.passed_by.append((run.attempt, fold, phase.results))
                else:
                    told.measured.append(fold)
                    with torch.no_grad():
                        phase.record(score=float(model.eval()(rows[held_out]).square().mean()))
                assert phase.steps == STEPS
            scores.append(phase.results["score"])
        assert run.steps == FOLDS * STEPS
        run.finish(score=sum(scores) / FOLDS)
        return scores, digest(model, optimizer)

    return script


def undisturbed(*, named: bool) -> tuple[list[float], str]:
    with folder() as run:
        result = attempt(run, 1, CheckpointPolicy(every_steps=4), folds(Fate(), Told(), named=named))
        assert result is not None
        return result


NAMED = pytest.mark.parametrize("named", [True, False], ids=["named", "numbered"])


@NAMED
@pytest.mark.parametrize(
    "moment", [THIRD[0], *(pytest.param(one, marks=pytest.mark.slow) for one in THIRD[1:])]
)
def test_killed_in_the_third_fold_those_before_are_passed_by_with_their_results(
    moment: int, named: bool, tmp_path: Path
) -> None:
    expected, told = undisturbed(named=named), Told()
    scores, _ = expected
    assert len(set(scores)) == FOLDS
    assert to_the_end(tmp_path / "run", EVERY_3, folds(Fate(moment), told, named=named)) == (expected, 2)
    assert told.passed_by == [(2, 0, {"score": scores[0]}), (2, 1, {"score": scores[1]})]
    assert told.measured == [0, 1, 2, 3]
    store = open_store(str(tmp_path / "run"))
    newest = checkpoints.read(store, FOLDS * STEPS)
    word = "fold" if named else "phase"
    assert [(one.name, one.steps, one.complete, one.results) for one in newest.phases] == [
        (f"{word} {number}", STEPS, True, {"score": score}) for number, score in enumerate(scores)
    ]


@pytest.mark.slow
@NAMED
@given(policy=POLICIES, kills=KILLS)
@QUICK
def test_killed_anywhere_it_ends_as_undisturbed(
    named: bool, policy: CheckpointPolicy, kills: list[int]
) -> None:
    with folder() as run:
        result, _ = to_the_end(run, policy, folds(Fate(*kills), Told(), named=named))
        assert result == undisturbed(named=named)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_each_fold_with_a_trainer_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Hugging Face's."""
    from transformers import TrainingArguments

    from airflow_elastic.frameworks import huggingface

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, _ = net()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            found = self.net(x)
            return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}

    done: list[list[bool]] = []

    def script(die: int) -> Callable[[Session], Any]:
        def run_it(run: Session) -> Any:
            monkeypatch.setattr(huggingface, "joined", lambda: run)
            die_at(run, die)
            rows, scores = [{"x": row, "labels": row[:1]} for row in torch.randn(21, 4)], []
            done.append([])
            for fold in range(3):
                arguments = TrainingArguments(
                    output_dir=str(tmp_path), per_device_train_batch_size=4, num_train_epochs=2, report_to=[],
                    disable_tqdm=True, use_cpu=True, logging_strategy="no", learning_rate=0.05,
                )  # fmt: skip
                model = Net()
                trainer = huggingface.ElasticTrainer(
                    global_batch=4, model=model, args=arguments, eval_dataset=rows[fold::3],
                    train_dataset=[row for number, row in enumerate(rows) if number % 3 != fold],
                )  # fmt: skip
                with run.phase(f"fold {fold}") as phase:
                    trainer.train()
                    if not phase.done:
                        phase.record(score=trainer.evaluate()["eval_loss"])
                    done[-1].append(phase.done)
                assert phase.steps == 8
                scores.append(phase.results["score"])
            trainer.finish()
            return scores, digest(model, trainer.optimizer)

        return run_it

    expected = attempt(tmp_path / "whole", 1, EVERY_3, script(0))
    assert to_the_end(tmp_path / "killed", MEMORY, script(2 * 8 + 3)) == (expected, 2)
    assert done == [[False] * 3, [False] * 2, [True, True, False]]
