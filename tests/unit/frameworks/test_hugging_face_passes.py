"""What Hugging Face's trainer does beside a training leaves no trace, or is refused before it begins."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput
from tests.support.runs.attempts import attempt, die_at, to_the_end
from tests.support.training.frameworks import put_joined_back

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)

POLICY = CheckpointPolicy(every_steps=3)
Passes = Callable[[Any], None]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1)
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layers(x)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


def arguments(folder: Path, **options: Any) -> Any:
    from transformers import TrainingArguments

    known = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "learning_rate": 0.05}
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    return TrainingArguments(output_dir=str(folder), **known | quiet | options)


def script(folder: Path, passes: Passes, *, die: int = 0, **options: Any) -> Callable[[Session], str]:
    """Two trainings of one model, with something else before each and after them."""

    def run_it(run: Session) -> str:
        from airflow_elastic.frameworks import huggingface

        huggingface.joined = lambda: run  # type: ignore[assignment]
        die_at(run, die)
        model, rows = Net(), torch.randn(22, 4)
        data = [{"x": row, "labels": row[:1]} for row in rows]
        for epochs in (2, 1):
            trainer = huggingface.ElasticTrainer(
                global_batch=4, model=model, args=arguments(folder, num_train_epochs=epochs, **options),
                train_dataset=data, eval_dataset=data,
            )  # fmt: skip
            passes(trainer)
            trainer.train()
        passes(trainer)
        assert run.steps == 18
        trainer.finish()
        return repr([model.state_dict(), torch.rand(2), random.random()])

    return run_it


def nothing(_: Any) -> None:
    """What a run without all that does."""


def trial(trainer: Any) -> None:
    with trainer.run.scratch(trainer.model):
        trainer.train()
        trainer.evaluate()


def measured(trainer: Any) -> None:
    if trainer.run.steps < 18:
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
        torch.rand(1)


@pytest.fixture(autouse=True)
def joined_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_joined_back(monkeypatch)


def traces(run: Path) -> list[Any]:
    store = open_store(str(run))
    found = [checkpoints.read(store, step) for step in checkpoints.steps(store)]
    return [(one.step, one.epoch, one.offset, one.samples, one.phases, sorted(one.metrics)) for one in found]


def test_a_trial_is_no_training_of_the_run(tmp_path: Path) -> None:
    """Nor where the run is killed in its second training, and the script comes to all of them once more."""
    one, whole, killed = (tmp_path / name for name in ("one", "whole", "killed"))
    undisturbed = attempt(one, 1, POLICY, script(tmp_path, nothing))
    assert undisturbed is not None
    assert attempt(whole, 1, POLICY, script(tmp_path, trial)) == undisturbed
    assert traces(whole) == traces(one)
    assert to_the_end(killed, POLICY, script(tmp_path, trial, die=16)) == (undisturbed, 2)
    assert traces(killed)[-1] == traces(one)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("die", [5, 16])
def test_what_only_measures_may_be_anywhere(die: int, tmp_path: Path) -> None:
    """It draws at random, as a script may; and what it has measured is told of no step of the training after it."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    undisturbed = attempt(whole, 1, POLICY, script(tmp_path, measured))
    assert to_the_end(killed, POLICY, script(tmp_path, measured, die=die)) == (undisturbed, 2)
    assert traces(killed)[-1] == traces(whole)[-1]
    assert all("eval_loss" not in found[-1] for found in traces(whole))


@pytest.mark.slow
def test_an_evaluation_at_the_start_is_made_once(tmp_path: Path) -> None:
    def ended(die: int) -> tuple[str, list[Any]]:
        seen: list[Any] = []

        def look(trainer: Any) -> None:
            seen.append([(one["step"], one.get("eval_loss")) for one in trainer.state.log_history])

        found = script(tmp_path, look, die=die, eval_on_start=True, eval_strategy="epoch")
        return to_the_end(tmp_path / str(die), POLICY, found)[0], seen[-1]

    whole = ended(0)
    assert [step for step, _ in whole[1]] == [0, 6, 6]
    assert ended(5) == ended(16) == whole


def test_looking_for_a_batch_size_is_refused_before_it_begins(tmp_path: Path) -> None:
    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    words = "auto_find_batch_size: given True; allowed: False"
    with pytest.raises(InvalidInput, match=words):
        ElasticTrainer(global_batch=4, model=Net(), args=arguments(tmp_path, auto_find_batch_size=True))
    trainer = ElasticTrainer(global_batch=4, model=Net(), args=arguments(tmp_path))
    trainer.args.auto_find_batch_size = True
    with pytest.raises(InvalidInput, match=words):
        trainer.train()


def test_a_search_within_a_run_is_refused(tmp_path: Path) -> None:
    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    trainer = ElasticTrainer(global_batch=4, model_init=lambda _: Net(), args=arguments(tmp_path))
    with pytest.raises(
        InvalidInput, match="Begin a run for each trial, as a mapped ElasticTrainOperator does"
    ):
        trainer.hyperparameter_search(n_trials=2)
