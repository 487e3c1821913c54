"""Real frameworks on the local engine: killed and rescaled, a training is the one that it would have been."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.core.checkpoints.sample_accounts import prove
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support.driving import SCRIPTS, Driven, driving, left_over, training

EXAMPLES = Path(__file__).parents[3] / "examples"
FRAMEWORKS = ("huggingface", "lightning", "accelerate")
EPOCHS, STEPS = 4, 28  # 100 samples an epoch, 16 a step

#: What each example tells at its end, and between what that has to be: by chance a tenth is right, and the loss is 2.3.
LEARNED = {
    "huggingface": ("eval_accuracy", 0.6, 1.0),
    "lightning": ("accuracy", 0.6, 1.0),
    "accelerate": ("loss", 0.0, 1.6),
}

#: Where each says that it stands at the end: steps, epochs, what it did at the end of each epoch.
STANDING = {
    "huggingface": ["28", "28", "[1.0, 2.0, 3.0, 4.0]"],
    "lightning": ["28", "4", "4", "[(0, 7), (1, 14), (2, 21), (3, 28)]", "[7, 14, 21, 28]", "4"],
    "accelerate": ["28", "28"],
}


def fitting(framework: str, folder: Path, *arguments: str, **changes: Any) -> Any:
    command = (
        str(SCRIPTS / f"framework_{framework}.py"),
        f"--epochs={EPOCHS}",
        f"--out={folder}/out",
        *arguments,
    )
    policy = CheckpointPolicy(every_steps=3, account_samples=True)
    return training(command=command, checkpoint=policy, **changes)


def left_behind(folder: Path) -> list[str]:
    return (folder / "out").read_text().splitlines()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(folder / "out.pt")
    return loaded


def each_sample_once(driven: Driven, state: RunState) -> None:
    assert state.checkpoint is not None
    assert state.checkpoint.step == STEPS
    proof = prove(read_accounts(driven.run.store), STEPS)
    assert proof.holds
    assert [(epoch.counted, epoch.length, epoch.complete) for epoch in proof.epochs] == [
        (100, 100, True)
    ] * EPOCHS


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    package = {"huggingface": "transformers"}.get(name, name)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return name


async def undisturbed(framework: str, folder: Path, *arguments: str, **changes: Any) -> Path:
    async with driving(folder / "run", fitting(framework, folder, *arguments, **changes)) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
    each_sample_once(driven, state)
    return folder


@pytest.mark.siblings
async def test_killed_and_rescaled_each_sample_counts_once(framework: str, tmp_path: Path) -> None:
    # Slow steps: a busy machine must not end the training before it is killed, and before it is scaled.
    spec = fitting(framework, tmp_path, "--step-seconds=0.5", workers=Workers(1, min=1, max=2))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(
            lambda: driven.state.checkpoint, "a checkpoint"
        )  # in the first epoch, of seven steps
        driven.kill_rank(0)
        await driven.until(
            lambda: len(driven.state.attempts) == 2 and driven.step_now >= 12, "a second attempt"
        )
        driven.run.ask_scale(2, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert (len(state.attempts), state.restarts_used) == (2, 1)
    assert state.attempt.progress is not None
    assert [stretch.world_size for stretch in state.attempt.progress.stretches] == [1, 2]
    each_sample_once(driven, state)
    status = driven.run.status()
    assert (status["step"], status["total_steps"], status["samples"]["seen"]) == (STEPS, STEPS, EPOCHS * 100)  # type: ignore[index]
    assert left_behind(tmp_path)[1:] == STANDING[framework]
    assert left_over(tmp_path / "run") == []


@pytest.mark.slow
async def test_killed_it_ends_bit_identical(framework: str, tmp_path: Path) -> None:
    expected = left_behind(await undisturbed(framework, tmp_path / "undisturbed"))
    assert expected[1:] == STANDING[framework]
    async with driving(tmp_path / "run", fitting(framework, tmp_path, "--step-seconds=0.1")) as driven:
        for attempt, step in enumerate((5, 14, 20), start=1):  # in an epoch, at the end of one, in another
            await driven.until(
                lambda n=attempt, s=step: len(driven.state.attempts) == n and driven.step_now >= s,  # type: ignore[misc]
                f"step {step} of attempt {attempt}",
            )
            driven.kill_rank(attempt % 2)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 4), state.reason
    each_sample_once(driven, state)
    assert left_behind(tmp_path) == expected


@pytest.mark.slow
async def test_rescaled_it_learns_the_same(framework: str, tmp_path: Path) -> None:
    words = ("--optimizer=sgd", "--dropout=0")
    expected = await undisturbed(framework, tmp_path / "undisturbed", *words)
    spec = fitting(framework, tmp_path, "--step-seconds=0.1", *words, workers=Workers(1, min=1, max=4))
    async with driving(tmp_path / "run", spec) as driven:
        for step, workers in ((5, 2), (12, 3), (19, 1)):
            await driven.until(lambda s=step: driven.step_now >= s, f"step {step}")  # type: ignore[misc]
            driven.run.ask_scale(workers, by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
    assert state.attempt.progress is not None
    assert [stretch.world_size for stretch in state.attempt.progress.stretches] == [1, 2, 3, 1]
    each_sample_once(driven, state)
    assert left_behind(tmp_path)[1:] == STANDING[framework]
    torch.testing.assert_close(weights(tmp_path), weights(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
async def test_what_was_trained_to_its_end_is_not_trained_on(framework: str, tmp_path: Path) -> None:
    expected = left_behind(await undisturbed(framework, tmp_path / "undisturbed"))
    async with driving(tmp_path / "run", fitting(framework, tmp_path, "--linger")) as driven:
        await driven.until(
            lambda: driven.state.checkpoint and driven.state.checkpoint.step == STEPS, "the last checkpoint"
        )
        driven.kill_rank(0)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    each_sample_once(driven, state)
    assert left_behind(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs, and so nothing to be told")
async def test_ranks_that_would_train_by_themselves_are_refused(framework: str, tmp_path: Path) -> None:
    if framework == "lightning":
        pytest.skip("Lightning needs not be told")
    async with driving(tmp_path / "run", fitting(framework, tmp_path, "--untold")) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    assert "would train by itself. Without GPUs, use" in (state.reason or "")


@pytest.mark.slow
async def test_the_example_learns(framework: str, tmp_path: Path) -> None:
    command = (str(EXAMPLES / f"train_{framework}.py"), "--epochs=5")
    async with driving(tmp_path / "run", training(command=command)) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    name, least, most = LEARNED[framework]
    assert least <= driven.run.status()["metrics"][name] <= most  # type: ignore[index]
