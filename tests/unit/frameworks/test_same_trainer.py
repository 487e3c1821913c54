"""One trainer object that trains twice: each call is a training of its own, as the framework has it without us."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.runs.attempts import attempt, die_at, to_the_end
from tests.support.training.frameworks import put_joined_back
from tests.unit.frameworks.test_hugging_face_passes import Net

POLICY = CheckpointPolicy(every_steps=5)

#: What a trainer counts when a step begins: its epoch, batches of it, its steps, its learning rate.
Counts = tuple[int, int, int, float]

#: By the run's steps before that one; and how many there are meant to be.
Seen = dict[int, tuple[Counts, int]]
Script = Callable[[Session | None], str]


@pytest.fixture(autouse=True)
def joined_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_joined_back(monkeypatch)


class Watch:
    """Notes what is counted, in a training of ours or of the framework alone."""

    def __init__(self, run: Session | None, seen: Seen) -> None:
        self._run, self._seen, self._steps = run, seen, 0

    def begins(self, counts: Counts) -> None:
        at = self._run.steps if self._run is not None else self._steps
        total = (
            int(self._run._heartbeat.words[shared_page.TOTAL_STEPS])
            if self._run is not None
            else 12 * (1 + at // 12)
        )
        self._seen[at] = (counts, total)
        self._steps += 1


def hugging_face(folder: Path, seen: Seen, die: int = 0) -> Script:
    """`train` twice: the optimizer, and what it remembers, is that of the first time; rates and steps begin anew."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from airflow_elastic.frameworks import huggingface

    def script(run: Session | None) -> str:
        watch = Watch(run, seen)

        class Watching(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                # (The part of an epoch that is behind is of samples with us, and of steps with them.)
                epoch, batches = divmod(state.global_step, 6)
                assert int(state.epoch) == epoch
                watch.begins((epoch, batches, state.global_step, more["optimizer"].param_groups[0]["lr"]))

        model, rows = Net(), torch.randn(22, 4)
        arguments = TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=0.05, report_to=[],
            disable_tqdm=True, use_cpu=True, logging_strategy="no", save_strategy="no",
        )  # fmt: skip
        options: dict[str, Any] = {
            "model": model,
            "args": arguments,
            "train_dataset": [{"x": row, "labels": row[:1]} for row in rows],
            "callbacks": [Watching()],
        }
        if run is None:
            trainer = Trainer(**options)
        else:
            die_at(run, die)
            huggingface.joined = lambda: run  # type: ignore[assignment]
            trainer = huggingface.ElasticTrainer(global_batch=4, **options)
        for _ in range(2):
            trainer.train()
        if run is not None:
            trainer.finish()
        return repr(
            [model.state_dict(), trainer.optimizer.state_dict(), trainer.state.global_step, torch.rand(2)]
        )

    return script


def lightning(folder: Path, seen: Seen, die: int = 0, *, tune: bool = False, **options: Any) -> Script:
    """`fit` twice: the trainer goes on counting epochs and steps, so the second time its limit is a higher one."""
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.tuner import Tuner

    from airflow_elastic.frameworks import lightning

    class Net(BoringModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.05
            self.layer = torch.nn.Sequential(
                torch.nn.Linear(32, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
            )

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]

    def script(run: Session | None) -> str:
        watch = Watch(run, seen)

        class Watching(Callback):  # type: ignore[misc]
            def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
                if run is None or not run.in_scratch:
                    rate = trainer.optimizers[0].param_groups[0]["lr"]
                    watch.begins((trainer.current_epoch, batch_idx, trainer.global_step, rate))

        module, data = Net(), torch.randn(22, 32)
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        limits: dict[str, Any] = {"max_epochs": 2} if "max_steps" not in options else {"max_epochs": -1}
        quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
        known = {"accelerator": "cpu", "callbacks": [Watching()], **limits, **dict.fromkeys(quiet, False)}
        if run is None:
            trainer = Trainer(devices=1, **{**known, **options})
        else:
            die_at(run, die)
            lightning.joined = lambda: run  # type: ignore[assignment]
            trainer = lightning.ElasticTrainer(global_batch=4, **{**known, **options})
        for number in (1, 2):
            if "max_steps" in options:
                trainer.fit_loop.epoch_loop.max_steps = 12 * number
            else:
                trainer.fit_loop.max_epochs = 2 * number
            if tune and run is not None:
                Tuner(trainer).lr_find(module, loader, num_training=5, update_attr=False)
            trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=11))
        trainer.fit(module, loader)  # whose limit is no higher: nothing is left to do
        if run is not None:
            trainer.finish()
        counts = trainer.current_epoch, trainer.global_step, trainer.fit_loop.epoch_loop.batch_progress
        return repr([module.state_dict(), trainer.optimizers[0].state_dict(), counts, torch.rand(2)])

    return script


def check(script: Callable[..., Script], die: int, folder: Path, **options: Any) -> None:
    theirs: Seen = {}
    script(folder, theirs, **options)(None)
    assert sorted(theirs) == [*range(24)]
    ours: Seen = {}
    undisturbed = attempt(folder / "whole", 1, POLICY, script(folder, ours, **options))
    assert ours == theirs
    seen: Seen = {}
    assert to_the_end(folder / "killed", POLICY, script(folder, seen, die, **options)) == (undisturbed, 2)
    assert seen == theirs
    for run in ("whole", "killed"):
        phases = checkpoints.read(open_store(str(folder / run)), 24).phases
        assert [(one.name, one.steps, one.complete) for one in phases[:2]] == [
            ("training", 12, True),
            ("training 2", 12, True),
        ]


def needs(package: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


#: 22 samples, 4 a step, 2 epochs a training: it dies within the second one; in the first, with the end of the first,
#: with the first step and the end of an epoch of the second, and with the very last step.
DEATHS = pytest.mark.parametrize(
    "die", [15, *(pytest.param(step, marks=pytest.mark.slow) for step in (7, 12, 13, 18, 24))]
)


@needs("transformers")
@DEATHS
def test_hugging_faces_trainer_trains_twice(die: int, tmp_path: Path) -> None:
    check(hugging_face, die, tmp_path)


@needs("lightning")
@DEATHS
def test_lightnings_trainer_fits_twice(die: int, tmp_path: Path) -> None:
    check(lightning, die, tmp_path)


@needs("lightning")
@pytest.mark.slow
@pytest.mark.parametrize("die", [7, 15])
@pytest.mark.parametrize(
    "options", [{"max_steps": 12}, {"reload_dataloaders_every_n_epochs": 1}, {"tune": True}], ids=str
)
def test_lightnings_trainer_fits_twice_whatever_its_limits(
    options: dict[str, Any], die: int, tmp_path: Path
) -> None:
    """Also where it loads its data anew with each epoch, and with a finder before each training."""
    check(lightning, die, tmp_path, **options)
