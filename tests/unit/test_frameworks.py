"""What the frameworks' layers refuse, and that they say what is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from airflow_elastic.spec.errors import InvalidInput

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


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_hugging_faces_best_checkpoint_is_the_runs_business() -> None:
    from transformers import TrainingArguments

    from airflow_elastic.frameworks.huggingface import ElasticTrainer

    args = TrainingArguments(
        load_best_model_at_end=True, eval_strategy="epoch", save_strategy="epoch", use_cpu=True
    )
    with pytest.raises(InvalidInput, match="allowed: False, as the run keeps the checkpoints"):
        ElasticTrainer(global_batch=4, args=args)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("kind", ["tokens", "classes"])
def test_in_any_number_of_pieces_hugging_faces_trainer_learns_the_same(kind: str, tmp_path: Path) -> None:
    """A loss that is a mean over tokens, and one that takes their number and does not heed it."""
    whole, cut = (_learned(kind, tmp_path, micro_batch) for micro_batch in (4, 1))
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
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


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize("name", ["devices", "num_nodes", "accumulate_grad_batches", "limit_train_batches"])
def test_what_follows_from_the_run_is_not_lightnings_to_say(name: str) -> None:
    from airflow_elastic.frameworks.lightning import ElasticTrainer

    with pytest.raises(InvalidInput, match=f"{name}: given 2; allowed: nothing, "):
        ElasticTrainer(global_batch=4, **{name: 2})


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
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
