"""What the frameworks' layers refuse, and that they say what is missing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

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


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@pytest.mark.parametrize("name", ["devices", "num_nodes", "accumulate_grad_batches", "limit_train_batches"])
def test_what_follows_from_the_run_is_not_lightnings_to_say(name: str) -> None:
    from airflow_elastic.frameworks.lightning import ElasticTrainer

    with pytest.raises(InvalidInput, match=f"{name}: given 2; allowed: nothing, "):
        ElasticTrainer(global_batch=4, **{name: 2})
