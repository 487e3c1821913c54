"""Each loop of the documentation, the examples and the DAGs, by real ranks, one of which is killed in a later epoch.

The end is that of a run that nobody disturbs, to the bit: model, optimizers, schedules, generators. What is printed
once an epoch is printed once for each. Their short form is tests/unit/runtime/session/test_loops.py.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support.driving import SCRIPTS, driving, training
from tests.support.runs.pages import ROOT
from tests.support.training.loops import STEPS, dressed, framework, is_alone, shown, supply, whole

#: The state of torchdata's loader: it has the seed of its workers, which torchdata does not put back.
STATEFUL = "other.data.rest"

#: What Hugging Face's Trainer tells of the last attempt alone, its time and its average loss; and where it keeps that.
LAST_ATTEMPT = re.compile(r"train_runtime|per_second|train_loss")
HISTORY = "other.progress.rest"

PACKAGES = {"huggingface": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


async def end(
    folder: Path, command: tuple[str, ...], fate: int, every: int, workers: int
) -> tuple[Any, list[str]]:
    """What the last checkpoint holds, and what rank 0 has printed of its epochs, over all attempts."""
    name = "killed" if fate else "undisturbed"
    spec = training(
        command=(str(SCRIPTS / "faults/fated.py"), str(fate), str(every), *command),
        workers=Workers(workers),
        checkpoint=CheckpointPolicy(every_steps=every),
    )
    async with driving(folder / name, spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2 if fate else 1), state.reason
    if fate:
        assert state.attempts[1].from_step == fate // every * every, (
            "it went on from elsewhere than it was to"
        )
    store = open_store(str(folder / name))
    manifest = checkpoints.read(store, checkpoints.steps(store)[-1])
    indexes = [
        json.loads(store.get(file.key) or b"") for file in manifest.files if file.key.endswith(".json")
    ]
    kept = {one["key"]: one["checksums"] for index in indexes for one in (*index["pieces"], *index["blobs"])}
    kept.pop(STATEFUL, None)
    logs = sorted((folder / name / "logs").rglob("*rank-0.log"))
    told = [line for log in logs for line in log.read_text().splitlines() if re.match(r"epoch \d", line)]
    metrics = {name: value for name, value in manifest.metrics.items() if not LAST_ATTEMPT.search(name)}
    if metrics != manifest.metrics:
        kept.pop(HISTORY)
    return (manifest.step, metrics, kept), told


async def check(
    folder: Path, *command: str, fate: int, every: int, workers: int = 2, epochs: tuple[int, ...] = (3,)
) -> None:
    expected = await end(folder, command, 0, every, workers)
    assert await end(folder, command, fate, every, workers) == expected
    told = [line.partition(":")[0] for line in expected[1]]
    assert told in [[f"epoch {number}" for number in range(most)] for most in epochs]


@pytest.mark.slow
@pytest.mark.parametrize("block", shown(), ids=str)
async def test_a_loop_of_the_documentation(block: Any, tmp_path: Path) -> None:
    needs = PACKAGES.get(framework(block) or "", "torchdata" if "Stateful" in block.text else "torch")
    pytest.importorskip(needs)
    script = tmp_path / "train.py"
    script.write_text(dressed(block, supply(tmp_path / "shards")))
    # Within the second epoch: of several ranks, so that none comes to the end of it before it hears of the loss.
    one, several = (
        {"fate": STEPS + 2, "every": 1, "workers": 1},
        {"fate": STEPS + 1, "every": 2, "workers": 2},
    )
    await check(tmp_path, str(script), **(one if is_alone(block) else several), epochs=(0, 3, 5))


@pytest.mark.slow
async def test_the_script_of_the_quickstart(tmp_path: Path) -> None:
    block = next(one for one in whole() if one.title == "train.py")
    script = tmp_path / "train.py"
    script.write_text(block.text)
    await check(tmp_path, str(script), fate=170, every=30)  # of 128 steps an epoch


@pytest.mark.slow
async def test_the_script_of_the_dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "dags" / "digits"))
    data = importlib.import_module("data").write(open_store(str(tmp_path)))
    script = str(ROOT / "dags" / "digits" / "train_digits.py")
    await check(tmp_path, script, "--data", data, "--epochs=3", fate=30, every=4)  # of 23 steps an epoch


@pytest.mark.slow
@pytest.mark.parametrize(("example", "fate"), [("accelerate", 30), ("lightning", 30), ("huggingface", 60)])
async def test_an_example(example: str, fate: int, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[example])
    script = str(ROOT / "examples" / f"train_{example}.py")
    await check(tmp_path, script, "--epochs=3", fate=fate, every=7, epochs=(0, 3))
