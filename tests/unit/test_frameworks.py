"""What the frameworks' layers refuse, and that they say what is missing."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.spec.errors import InvalidInput

HUGGING_FACE = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
LIGHTNING = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)
ACCELERATE = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed"
)

WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("accelerate", "lightning", "transformers")))
for name in ("accelerate", "huggingface", "lightning"):
    try:
        __import__(f"airflow_elastic.frameworks.{name}")
    except ImportError as error:
        print(error)
"""


def test_a_framework_that_is_missing_is_named_and_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert [line.partition(", or")[0] for line in done.stdout.splitlines()] == [
        f"{package} is not installed here: pip install 'airflow-elastic[runtime,{extra}]'"
        for package, extra in (
            ("accelerate", "accelerate"),
            ("transformers", "huggingface"),
            ("lightning", "lightning"),
        )
    ]


@HUGGING_FACE
def test_hugging_faces_best_checkpoint_is_the_runs_business() -> None:
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    args = TrainingArguments(
        load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch", use_cpu=True
    )
    with pytest.raises(InvalidInput, match="allowed: False, as the run keeps the checkpoints"):
        ElasticTrainer(global_batch=4, args=args)


@HUGGING_FACE
@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_in_any_number_of_pieces_hugging_faces_trainer_learns_the_same(kind: str, tmp_path: Path) -> None:
    """A loss that is a mean over tokens, and one that takes their number and does not heed it."""
    whole, cut = (_learned(kind, tmp_path, micro_batch) for micro_batch in (4, 1))
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


@HUGGING_FACE
def test_what_is_measured_after_a_step_is_told_with_that_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best checkpoint is found by it."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    model = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    data = [
        {"input_ids": torch.arange(n, n + 8) % 20, "labels": torch.arange(n, n + 8) % 20} for n in range(16)
    ]
    measuring = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 100, "learning_rate": 0.1}
    args = TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **measuring,
    )
    trainer = ElasticTrainer(global_batch=4, model=model, args=args, train_dataset=data, eval_dataset=data)
    step, told = trainer.run.step, []

    def telling(loss: torch.Tensor, **metrics: float) -> None:
        told.append(metrics.get("eval_loss"))
        step(loss, **metrics)

    monkeypatch.setattr(trainer.run, "step", telling)
    trainer.train()
    found = {one["step"]: one["eval_loss"] for one in trainer.state.log_history if "eval_loss" in one}
    assert sorted(found) == [2, 4, 6, 8]
    assert len(set(found.values())) == 4
    assert told == [None, *(found[at] for at in (2, 2, 4, 4, 6, 6, 8))]


class Kept:
    """What a run has kept with its last save, and gives to the trainer of another attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._state = monkeypatch, None

    def of(self, trainer: Any) -> Any:
        progress: list[Any] = []
        run, feed = trainer.run, trainer.run._feed

        def restore(model: Any, *optimizers: Any, **others: Any) -> None:
            progress.append(others["progress"])
            if self._state is not None:
                kept, run.steps, feed.position, order = self._state
                progress[0].load_state_dict(kept)
                feed.load_state_dict(order)

        def save(**_: Any) -> None:
            state = (progress[0].state_dict(), run.steps, feed.position, feed.state_dict())
            self._state = copy.deepcopy(state)

        self._monkeypatch.setattr(run, "restore", restore)
        self._monkeypatch.setattr(run, "save", save)
        return trainer

    def cut_off(self, trainer: Any, after: int) -> Any:
        """The same, and it is lost when it has saved after so many steps."""
        run, step = self.of(trainer).run, trainer.run.step

        def stepped(*told: Any, **metrics: Any) -> None:
            step(*told, **metrics)
            if run.steps == after:
                run.save()
                raise Lost

        self._monkeypatch.setattr(run, "step", stepped)
        return trainer


class Lost(Exception):
    """Of a training that has ended without a word."""


@HUGGING_FACE
def test_hugging_faces_trainer_that_has_stopped_early_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run may be lost, or get other workers, while it is evaluated for the last time."""
    from transformers import TrainerCallback, TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop |= state.global_step == 2

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.mse_loss(self.line(x), labels)}

    data = [{"x": torch.ones(1), "labels": torch.ones(1)} for _ in range(16)]
    kept, options = Kept(monkeypatch), {"report_to": [], "disable_tqdm": True, "use_cpu": True}

    def trained(*callbacks: Any) -> int:
        args = TrainingArguments(output_dir=str(tmp_path), num_train_epochs=2, **options)
        trainer = kept.of(
            ElasticTrainer(
                global_batch=4, model=Line(), args=args, train_dataset=data, callbacks=list(callbacks)
            )
        )
        trainer.train()
        return int(trainer.state.global_step)

    assert trained(Stop()) == 2
    assert trained() == 2


@HUGGING_FACE
@pytest.mark.parametrize("whose", ["a function", "a trainer of one's own that scales it"])
def test_a_loss_of_ones_own_is_the_same_in_any_number_of_pieces(tmp_path: Path, whose: str) -> None:
    """Also of data in which nothing tells how many tokens there are."""
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    class Line(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1, bias=False)
            torch.nn.init.zeros_(self.line.weight)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.line(x)}

    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return (outputs["out"] - 1.0).square().mean()

    class Scaling(ElasticTrainer):  # type: ignore[misc]
        loss_is_scaled_for_ga = True

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            return loss_of(model(**inputs), None) / self.current_gradient_accumulation_steps

    def learned(micro_batch: int) -> float:
        args = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=micro_batch, max_steps=1, optim="sgd",
            learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=0.0, label_names=["y"],
            report_to=[], disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        data = [{"x": torch.ones(1), "y": torch.ones(1)} for _ in range(4)]
        model = Line()
        options = {"global_batch": 4, "model": model, "args": args, "train_dataset": data}
        own = partial(ElasticTrainer, compute_loss_func=loss_of) if whose == "a function" else Scaling
        trainer = own(**options)
        trainer.train()
        return model.line.weight.item()

    assert [learned(micro_batch) for micro_batch in (4, 2, 1)] == pytest.approx([0.2, 0.2, 0.2])


def _learned(kind: str, folder: Path, micro_batch: int) -> dict[str, torch.Tensor]:
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        TrainingArguments,
    )

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    torch.manual_seed(1)
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    gpt = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, **still)
    quiet = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=3, **sizes, **quiet)
    model = GPT2LMHeadModel(gpt) if kind == "tokens" else BertForSequenceClassification(bert)
    data = []
    for number in range(10):  # the last global batch has 2 of them: pieces are left over
        tokens = torch.arange(number, number + 8) % 20
        labels = tokens.clone()
        labels[2 + number % 5 :] = -100
        data.append({"input_ids": tokens, "labels": labels if kind == "tokens" else number % 3})
    args = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=micro_batch,
        num_train_epochs=2,
        optim="sgd",
        learning_rate=0.5,
        max_grad_norm=0.0,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = ElasticTrainer(global_batch=4, model=model, args=args, train_dataset=data)
    trainer.train()
    assert trainer.state.global_step == 6
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def accelerated(**options: Any) -> tuple[Any, Any]:
    from accelerate import Accelerator

    from airflow_elastic.frameworks.accelerate import ElasticRun

    data: Any = [torch.full((1,), float(number)) for number in range(20)]
    return ElasticRun(Accelerator(cpu=True)), torch.utils.data.DataLoader(data, **{"batch_size": 4} | options)


@ACCELERATE
def test_a_loop_with_accelerate_that_never_tells_of_a_step_is_refused() -> None:
    """It was given the same epoch over and over."""
    run, loader = accelerated()
    with pytest.raises(InvalidInput, match=r"call run\.step\(\) at the end of each batch"):
        list(run.loader(loader, global_batch=4, epochs=2))


@ACCELERATE
def test_a_loop_with_accelerate_that_does_not_weight_its_batches_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may do so by itself, or leave a batch out."""
    run, loader = accelerated()
    for _ in run.loader(loader, global_batch=4, epochs=1):
        run.step()
    assert run.session.steps == 5
    (said,) = [one for one in caplog.messages if "without run.backward" in one]
    assert "does not weight batches" in said


@ACCELERATE
def test_a_loop_with_accelerate_that_does_not_accumulate_is_refused() -> None:
    run, loader = accelerated()
    next(run.loader(loader, global_batch=8, epochs=1))
    with pytest.raises(InvalidInput, match=r"into `with accelerator\.accumulate\(model\):`"):
        run.step()


@ACCELERATE
def test_a_loader_that_says_nothing_of_what_a_device_takes_is_refused() -> None:
    order = torch.utils.data.BatchSampler(range(20), 4, drop_last=False)
    run, loader = accelerated(batch_size=1, batch_sampler=order)
    with pytest.raises(InvalidInput, match="given a DataLoader without batch_size"):
        next(run.loader(loader, global_batch=8, epochs=1))


@HUGGING_FACE
def test_a_checkpoint_of_hugging_faces_own_is_refused(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = ElasticTrainer(global_batch=4, model=torch.nn.Linear(1, 1), args=args)
    with pytest.raises(InvalidInput, match="resume_from_checkpoint: given True; allowed: none"):
        trainer.train(resume_from_checkpoint=True)


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

    trainer = ElasticTrainer(
        global_batch=4, max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
        limit_val_batches=0, reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip
    trainer.fit(Model())
    assert sorted(seen) == sorted([*range(10), *range(10)])
    assert trainer.run.steps == trainer.global_step == 6
    assert trainer.run.ahead == (2, 0)


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

    data: Any = [torch.full((32,), float(number)) for number in range(20)]
    trainer = ElasticTrainer(
        global_batch=4, max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False,
        limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))
    assert [sorted(seen[at : at + 20]) for at in (0, 20, 40)] == [[*range(20)]] * 3
    assert (trainer.run.steps, trainer.run.ahead, trainer.global_step) == (15, (3, 0), 6)
    (said,) = [one for one in caplog.messages if "without an optimizer's step" in one]
    assert "have a larger global_batch" in said


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
