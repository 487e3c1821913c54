"""Lightning's trainer goes on as if nothing had been, and what is the run's business is refused to it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.frameworks import Kept, Lost

LIGHTNING = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)


@LIGHTNING
@pytest.mark.parametrize("name", ["devices", "num_nodes", "accumulate_grad_batches", "limit_train_batches"])
def test_what_follows_from_the_run_is_not_lightnings_to_say(name: str) -> None:
    from airflow_elastic.frameworks.lightning import ElasticTrainer

    with pytest.raises(InvalidInput, match=f"{name}: given 2; allowed: nothing, "):
        ElasticTrainer(global_batch=4, **{name: 2})


@LIGHTNING
def test_what_lightnings_own_checkpoints_would_keep_is_not_lost_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import EMAWeightAveraging
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Talking(Callback):
        def on_save_checkpoint(self, trainer: object, pl_module: object, checkpoint: object) -> None:
            pass

    def fit(*callbacks: Callback, model: BoringModel | None = None) -> None:
        trainer = ElasticTrainer(
            global_batch=1, max_steps=1, accelerator="cpu", logger=False, callbacks=list(callbacks),
            enable_progress_bar=False, limit_val_batches=0,
        )  # fmt: skip
        trainer.fit(model or BoringModel())

    with pytest.raises(InvalidInput, match=r"EMAWeightAveraging\..* would keep the averaged weights"):
        fit(EMAWeightAveraging())

    class Averaged(BoringModel):  # type: ignore[misc]
        def configure_callbacks(self) -> list[Callback]:
            return [EMAWeightAveraging()]

    with pytest.raises(InvalidInput, match="would keep the averaged weights"):
        fit(model=Averaged())
    fit(Talking())
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("airflow_elastic.frameworks")]
    (said,) = ours
    assert said.startswith("Talking.on_save_checkpoint is not called: ")


@LIGHTNING
def test_lightnings_trainer_that_loads_its_data_anew_does_all_of_it_once() -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    seen: list[int] = []

    class Model(BoringModel):  # type: ignore[misc]
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            seen.extend(batch[:, 0].int().tolist())
            return super().training_step(batch, batch_idx)

        def train_dataloader(self) -> Any:
            data: Any = [torch.full((32,), float(number)) for number in range(10)]
            return torch.utils.data.DataLoader(data, batch_size=4)

        def on_train_end(self) -> None:
            stood.append(self.trainer.run.ahead)

    stood: list[tuple[int, int]] = []
    trainer = ElasticTrainer(
        global_batch=4, max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        limit_val_batches=0, reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip
    trainer.fit(Model())
    assert sorted(seen) == sorted([*range(10), *range(10)])
    assert trainer.run.steps == trainer.global_step == 6
    assert stood == [(2, 0)]


@LIGHTNING
@pytest.mark.parametrize("after", [2, 5, 8, 9, 11])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_lightnings_trainer_goes_on_within_an_epoch_as_if_nothing_had_been(
    every: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it loads anew, it trains on the same data, and validates after the same steps."""
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Model(BoringModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.trained: list[tuple[int, int, int]] = []
            self.validated: list[int] = []

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            self.trained.extend((self.trainer.global_step, batch_idx, int(one)) for one in batch[:, 0])
            return super().training_step(batch, batch_idx)

        def on_validation_start(self) -> None:
            self.validated.append(self.trainer.global_step)

        def train_dataloader(self) -> Any:
            """Other data, by the epoch in which it is loaded."""
            numbers = range(at := 100 * self.trainer.current_epoch, at + 14)
            data: Any = [torch.full((32,), float(number)) for number in numbers]
            return torch.utils.data.DataLoader(data, batch_size=2)

    def trainer() -> ElasticTrainer:
        return ElasticTrainer(
            global_batch=4, max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
            num_sanity_val_steps=0, limit_val_batches=1, val_check_interval=4,
            reload_dataloaders_every_n_epochs=every,
        )  # fmt: skip

    undisturbed, lost, again = Model(), Model(), Model()
    trainer().fit(undisturbed)
    kept = Kept(monkeypatch)
    with pytest.raises(Lost):
        kept.cut_off(trainer(), after).fit(lost)
    kept.of(trainer()).fit(again)
    trained = [one for one in lost.trained if one[0] < after] + again.trained
    assert trained == undisturbed.trained
    assert lost.validated + [step for step in again.validated if step > after] == undisturbed.validated


@LIGHTNING
def test_samples_are_behind_though_lightnings_trainer_counts_no_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With manual optimization: some came twice in an epoch, and others never."""
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    seen: list[int] = []

    class Model(BoringModel):  # type: ignore[misc]
        automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            seen.extend(batch[:, 0].int().tolist())
            self.manual_backward(self.layer(batch).sum())
            if batch_idx % 2:
                self.optimizers().step()  # type: ignore[union-attr]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_end(self) -> None:
            stood.append(self.trainer.run.ahead)

    stood: list[tuple[int, int]] = []
    data: Any = [torch.full((32,), float(number)) for number in range(20)]
    trainer = ElasticTrainer(
        global_batch=4, max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
        limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    assert [sorted(seen[at : at + 20]) for at in (0, 20, 40)] == [[*range(20)]] * 3
    assert (trainer.run.steps, stood, trainer.global_step) == (15, [(3, 0)], 6)
    (said,) = [one for one in caplog.messages if "without an optimizer step" in one]
    assert "use a larger global_batch" in said


@LIGHTNING
def test_a_checkpoint_of_lightnings_own_is_refused() -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    trainer = ElasticTrainer(global_batch=4, accelerator="cpu", logger=False)
    with pytest.raises(InvalidInput, match=r"ckpt_path: given; allowed: none, .* elastic\.load_weights"):
        trainer.fit(BoringModel(), ckpt_path="last.ckpt")


@LIGHTNING
@pytest.mark.parametrize("endless", [{"max_epochs": -1}, {"max_epochs": -1, "max_time": {"hours": 1}}])
def test_lightnings_trainer_may_train_on_and_on(endless: Any) -> None:
    from lightning.pytorch import Callback
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop |= trainer.global_step == 20

    trainer = ElasticTrainer(
        global_batch=4, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[Stop()],
        limit_val_batches=0, **endless,
    )  # fmt: skip
    trainer.fit(BoringModel())
    assert trainer.run.steps == 20


@LIGHTNING
def test_lightnings_trainer_that_has_stopped_early_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch import Callback
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.should_stop |= trainer.global_step == 2

    kept = Kept(monkeypatch)

    def trained(*callbacks: Callback) -> int:
        trainer = kept.of(
            ElasticTrainer(
                global_batch=4,
                max_epochs=2,
                accelerator="cpu",
                logger=False,
                callbacks=list(callbacks),
                enable_progress_bar=False,
                limit_val_batches=0,
            )
        )
        trainer.fit(BoringModel())
        return int(trainer.global_step)

    assert trained(Stop()) == 2
    assert trained() == 2


@LIGHTNING
def test_another_accumulation_is_not_lightnings_to_say() -> None:
    from lightning.pytorch.callbacks import GradientAccumulationScheduler
    from lightning.pytorch.demos.boring_classes import BoringModel

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    scheduler = GradientAccumulationScheduler({0: 2})
    trainer = ElasticTrainer(global_batch=4, accelerator="cpu", logger=False, callbacks=[scheduler])
    with pytest.raises(InvalidInput, match="GradientAccumulationScheduler: given; allowed: none"):
        trainer.fit(BoringModel())


@LIGHTNING
def test_a_loss_is_told_as_it_is_also_where_gradients_are_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.plugins.precision import MixedPrecision

    from airflow_elastic.frameworks.lightning import ElasticTrainer

    lost: list[float] = []

    class Model(BoringModel):  # type: ignore[misc]
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)["loss"]
            lost.append(loss.item())
            return loss

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    trainer = ElasticTrainer(
        global_batch=4, max_steps=3, accelerator="cpu", logger=False, enable_progress_bar=False,
        limit_val_batches=0, plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    )  # fmt: skip
    step, told = trainer.run.step, []

    def telling(loss: torch.Tensor, **metrics: float) -> None:
        told.append(loss.item())
        step(loss, **metrics)

    monkeypatch.setattr(trainer.run, "step", telling)
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.rand(12, 32), batch_size=4))
    assert told == pytest.approx(lost, rel=1e-3)


@LIGHTNING
def test_pruning_resets_a_restarted_attempt_to_no_other_weights() -> None:
    """Lightning's copies of the first weights have the memory of the parameters once it has reset them."""
    from lightning.pytorch import LightningModule
    from lightning.pytorch.callbacks import ModelPruning

    from airflow_elastic.frameworks import lightning_pruning
    from airflow_elastic.runtime.model_changes.callback_changes import ModelShape

    def begun() -> tuple[Any, Any, ModelShape]:
        torch.manual_seed(2)
        module = LightningModule()
        module.one, module.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        pruning = ModelPruning("l1_unstructured", use_global_unstructured=True, amount=0.2)
        shape = ModelShape(module, [])
        pruning.setup(None, module, "fit")  # type: ignore[arg-type]
        return module, pruning, shape

    def epoch(module: Any, pruning: Any) -> None:
        with torch.no_grad():
            for number, one in enumerate(module.parameters()):
                one += 0.1 * number
        module.other(module.one(torch.ones(1, 4)))  # computes what is pruned
        pruning._run_pruning(0)

    module, pruning, shape = begun()
    assert lightning_pruning.shared(pruning) == []
    epoch(module, pruning)
    kept, numbers = shape.state_dict(), lightning_pruning.shared(pruning)
    assert sorted(numbers) == [0, 1, 2, 3]
    again, other, rebuilt = begun()
    rebuilt.load_state_dict(kept)
    again.load_state_dict(module.state_dict())
    lightning_pruning.share(other, numbers)
    for _ in range(2):
        epoch(module, pruning)
        epoch(again, other)
        ours, theirs = module.state_dict(), again.state_dict()
        assert all(torch.equal(one, theirs[name]) for name, one in ours.items())
