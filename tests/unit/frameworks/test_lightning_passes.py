"""What Lightning does beside a training leaves no trace, or is refused before it begins."""

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
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)

POLICY = CheckpointPolicy(every_steps=3)


class Told:
    """What a script has seen of one attempt."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.finders: list[Any] = []
        self.measured: list[Any] = []


def net(told: Told) -> Any:
    from lightning.pytorch.demos.boring_classes import BoringModel

    class Net(BoringModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.01
            self.layer = torch.nn.Sequential(
                torch.nn.Linear(32, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
            )

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            told.rates.append(self.lr)

        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            torch.rand(1)
            random.random()
            loss = self.layer(batch).square().mean()
            self.log("val", loss)
            return {"x": loss}

        test_step = validation_step

    return Net()


def script(
    run_passes: Callable[[Any, Any, Any, Told], None],
    told: Told,
    *,
    die: int = 0,
    again: Callable[[Any, Any, Any, Told], None] | None = None,
    batch: int = 4,
    lengths: tuple[int, int] = (2, 1),
    **options: Any,
) -> Callable[[Session], str]:
    """Two trainings of one module, with something else before each and after them."""

    def run_it(run: Session) -> str:
        from airflow_elastic.frameworks import lightning

        lightning.joined = lambda: run  # type: ignore[assignment]
        module = net(told)
        data = torch.randn(22, 32)
        loader = torch.utils.data.DataLoader(data, batch_size=batch)
        die_at(run, die)
        for epochs in lengths:
            trainer = lightning.ElasticTrainer(
                global_batch=batch, max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
                enable_model_summary=False, **options,
            )  # fmt: skip
            run_passes(trainer, module, loader, told)
            trainer.fit(module, loader, torch.utils.data.DataLoader(data, batch_size=11))
            (again or run_passes)(trainer, module, loader, told)
        assert run.steps == sum(lengths) * -(-len(data) // batch)
        trainer.finish()
        return repr([module.state_dict(), torch.rand(2), random.random()])

    return run_it


def nothing(*_: Any) -> None:
    """What a run without all that does."""


@pytest.fixture(autouse=True)
def joined_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    put_joined_back(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    from airflow_elastic.frameworks import lightning

    run, joined = tmp_path_factory.mktemp("undisturbed") / "run", lightning.joined
    try:
        result = attempt(run, 1, POLICY, script(nothing, Told(), num_sanity_val_steps=0))
    finally:
        lightning.joined = joined
    assert result is not None
    return result, traces(run)


def traces(run: Path) -> list[Any]:
    store = open_store(str(run))
    found = [checkpoints.read(store, step) for step in checkpoints.steps(store)]
    return [(one.step, one.epoch, one.offset, one.samples, one.phases) for one in found]


def tuner(trainer: Any, module: Any, loader: Any, told: Told) -> None:
    from lightning.pytorch.tuner import Tuner

    found = Tuner(trainer).lr_find(module, loader, num_training=14, update_attr=False)
    told.finders.append((found.results, found.suggestion(skip_begin=2)))


def dry(trainer: Any, module: Any, loader: Any, told: Told) -> None:
    from airflow_elastic.frameworks.lightning import ElasticTrainer

    quick = ElasticTrainer(
        global_batch=4, fast_dev_run=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    quick.fit(module, loader, torch.utils.data.DataLoader(loader.dataset, batch_size=11))
    told.measured.append(int(quick.global_step))


def scratch(trainer: Any, module: Any, loader: Any, told: Told) -> None:
    with trainer.run.scratch(module):
        trainer.fit(module, loader)


LONG = [pytest.param(kind, marks=pytest.mark.slow) for kind in (dry, scratch)]


@pytest.mark.parametrize("kind", [tuner, *LONG])
def test_a_pass_is_no_training_of_the_run(
    kind: Any, undisturbed: tuple[str, list[Any]], tmp_path: Path
) -> None:
    """Nor where the run is killed in its second training, and the script comes to all of them once more."""
    told = Told()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert attempt(whole, 1, POLICY, script(kind, told)) == undisturbed[0]
    assert traces(whole) == undisturbed[1]
    assert to_the_end(killed, POLICY, script(kind, told, die=16)) == (undisturbed[0], 2)
    assert [one[:4] for one in traces(killed)[-1:]] == [one[:4] for one in undisturbed[1][-1:]]


@pytest.mark.slow
def test_what_a_finder_has_found_a_restart_does_not_look_for_again(tmp_path: Path) -> None:
    told, passes = Told(), []

    def counting(trainer: Any, module: Any, loader: Any, told: Told) -> None:
        before = len(told.rates)
        tuner(trainer, module, loader, told)
        passes.append(len(told.rates) - before)

    to_the_end(tmp_path / "run", POLICY, script(counting, told, die=16, again=nothing))
    assert [bool(steps) for steps in passes] == [True, True, False, False]
    assert told.finders[2:] == told.finders[:2]


@pytest.mark.parametrize("die", [30, pytest.param(9, marks=pytest.mark.slow)])
def test_a_finder_among_the_callbacks_sets_the_rate_once(die: int, tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import LearningRateFinder

    def ended(die: int) -> tuple[str, list[float]]:
        told = Told()
        finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
        found = script(nothing, told, die=die, callbacks=[finder], batch=2, lengths=(2, 2))
        return to_the_end(tmp_path / str(die), POLICY, found)[0], sorted(set(told.rates))

    whole, rates = ended(0)
    assert len(rates) > 1  # as it was written, and as it was found
    assert ended(die) == (whole, rates)


def test_a_finder_that_a_restart_passes_by_leaves_its_rate_to_no_other(tmp_path: Path) -> None:
    """As one that is looked for only where the run begins, or in a pass of the script's own."""
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    told, suggested = Told(), []

    def first(trainer: Any, module: Any, loader: Any, told: Told) -> None:
        if trainer.run.resumed is None:
            low: dict[str, Any] = {"num_training": 4, "min_lr": 1e-8, "max_lr": 1e-6, "update_attr": False}
            options: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
            another = ElasticTrainer(global_batch=4, max_epochs=1, accelerator="cpu", **options)
            Tuner(another).lr_find(module, loader, **low)
            with another.run.scratch(module):
                Tuner(another).lr_find(module, loader, **low)

    def then(trainer: Any, module: Any, loader: Any, told: Told) -> None:
        (finder,) = (one for one in trainer.callbacks if isinstance(one, LearningRateFinder))
        suggested.append(finder.optimal_lr.results["lr"])

    finder = LearningRateFinder(min_lr=1e-3, max_lr=1e-1, num_training_steps=4, early_stop_threshold=None)
    found = script(first, told, die=8, again=then, callbacks=[finder], lengths=(2,))
    to_the_end(tmp_path / "run", POLICY, found)
    assert suggested[-1][0] >= 1e-3
    notes = checkpoints.read(open_store(str(tmp_path / "run")), 12).notes
    assert sorted(notes) == [
        "lightning.lr_find 0 LearningRateFinder exponential 0.001 0.1 4 1",
        "lightning.lr_find 0 Tuner exponential 1e-08 1e-06 4 1",
    ]


def test_a_finder_of_batch_sizes_is_refused_before_it_begins(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import BatchSizeFinder
    from lightning.pytorch.tuner import Tuner

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    options: Any = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    told = Told()
    module = net(told)
    module.batch_size = 2
    module.train_dataloader = lambda: torch.utils.data.DataLoader(
        torch.rand(8, 32), batch_size=module.batch_size
    )
    with pytest.raises(InvalidInput, match=r"Tuner\.scale_batch_size: given; allowed: none while training"):
        Tuner(ElasticTrainer(global_batch=4, **options)).scale_batch_size(module)
    trainer = ElasticTrainer(global_batch=4, callbacks=[BatchSizeFinder()], **options)
    with pytest.raises(InvalidInput, match="BatchSizeFinder: given; allowed: none while training"):
        trainer.fit(module)
    assert (trainer.run.steps, told.rates) == (0, [])


def test_a_finder_in_the_middle_of_a_training_is_refused(tmp_path: Path) -> None:
    from lightning.pytorch.callbacks import LearningRateFinder

    class Later(LearningRateFinder):  # type: ignore[misc]
        def on_fit_start(self, *_: Any) -> None:
            pass

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                self.lr_find(trainer, pl_module)

    refused = script(nothing, Told(), callbacks=[Later()])
    with pytest.raises(InvalidInput, match=r"Later\.lr_find: given at epoch 1; allowed: before the training"):
        attempt(tmp_path / "run", 1, POLICY, refused)


@pytest.mark.slow
def test_what_only_measures_may_be_anywhere(undisturbed: tuple[str, list[Any]], tmp_path: Path) -> None:
    """It draws at random, as a script may: what follows is the same after a restart."""

    def measuring(trainer: Any, module: Any, loader: Any, told: Told) -> None:
        if trainer.run.steps == 18:
            return
        for measure in (trainer.validate, trainer.test):
            told.measured.append(measure(module, loader, verbose=False))
        trainer.predict(module, loader)

    def ended(die: int) -> tuple[str, list[Any]]:
        run, told = tmp_path / str(die), Told()
        result, _ = to_the_end(run, POLICY, script(measuring, told, die=die, num_sanity_val_steps=2))
        return result, traces(run)[-1][:4]

    assert ended(0) == ended(8) == ended(16)
