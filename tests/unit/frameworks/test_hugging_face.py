"""Hugging Face's trainer learns the same in any number of pieces, and what is the run's business is refused to it."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.frameworks import Kept

HUGGING_FACE = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@HUGGING_FACE
def test_hugging_faces_best_checkpoint_is_the_runs_business() -> None:
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    args = TrainingArguments(
        load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch", use_cpu=True
    )
    with pytest.raises(InvalidInput, match="allowed: False, because the run keeps the checkpoints"):
        ElasticTrainer(global_batch=4, args=args)


@HUGGING_FACE
@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_in_any_number_of_pieces_hugging_faces_trainer_learns_the_same(kind: str, tmp_path: Path) -> None:
    """A loss that is a mean over tokens, and one that takes their number and does not heed it."""
    whole, cut = (_learned(kind, tmp_path, micro_batch) for micro_batch in (4, 1))
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


@HUGGING_FACE
@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_on_any_number_of_ranks_what_is_measured_of_a_batch_is_the_same(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer takes it times the number of ranks, as if the model had divided it by the tokens of them all."""
    from accelerate import Accelerator
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        GPT2Config,
        GPT2LMHeadModel,
        TrainingArguments,
    )

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    words = torch.arange(8).reshape(1, 8)
    if kind == "tokens":
        model, labels = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)), words
    else:
        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        model = BertForSequenceClassification(BertConfig(vocab_size=20, num_labels=3, **small))
        labels = torch.tensor([1])
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    trainer = ElasticTrainer(global_batch=4, model=model.eval(), args=args)

    def measured() -> torch.Tensor:
        loss: torch.Tensor = trainer.prediction_step(model, {"input_ids": words, "labels": labels}, True)[0]
        return loss

    alone = measured()
    monkeypatch.setattr(Accelerator, "num_processes", 3)
    torch.testing.assert_close(measured(), alone)


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


@HUGGING_FACE
def test_a_checkpoint_of_hugging_faces_own_is_refused(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    trainer = ElasticTrainer(global_batch=4, model=torch.nn.Linear(1, 1), args=args)
    with pytest.raises(InvalidInput, match="resume_from_checkpoint: given True; allowed: none"):
        trainer.train(resume_from_checkpoint=True)
