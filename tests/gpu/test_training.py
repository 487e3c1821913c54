"""Trainings on a GPU, killed while they compute and while they save: each ends as if nothing had been.

One GPU is enough: two ranks share it, with gloo, as NCCL takes no two ranks of one.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.e2e.training.test_frameworks import (
    FRAMEWORKS,
    STANDING,
    each_sample_once,
    fitting,
    left_behind,
    undisturbed,
)
from tests.support.doom import PHASES, Doom, order
from tests.support.driving import driving, left_over, plain, training
from tests.support.machine import leaks
from tests.support.machine.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

EPOCHS = "--epochs=12"


@pytest.mark.parametrize("overlap", [False, True], ids=["at-once", "overlap"])
@pytest.mark.parametrize("words", ["--gpu", "--gpu --sharded"])
async def test_killed_at_random_it_ends_bit_identical(words: str, overlap: bool, tmp_path: Path) -> None:
    seed, kills = random.SystemRandom().getrandbits(32), 5
    luck, memory = random.Random(seed), leaks.SharedMemory()
    (tmp_path / "plain").mkdir()
    expected = await asyncio.to_thread(plain, tmp_path / "plain", EPOCHS, *words.split(), ranks=1)
    spec = training(
        EPOCHS,
        "--step-seconds=0.05",
        f"--out={tmp_path}/out",
        *words.split(),
        checkpoint=CheckpointPolicy(every_steps=5, memory_every_steps=2, overlap=overlap),
        workers=Workers(1, min=1),
    )
    async with driving(tmp_path / "run", spec) as driven:
        await driven.killed_at_random(kills, luck, workers=1)
        state = await driven.end()
    assert state.outcome == "succeeded", f"seed {seed}: {state.reason}"
    assert len(state.attempts) == kills + 1, f"seed {seed}"
    assert (tmp_path / "out").read_text() == expected, f"seed {seed}"
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), f"seed {seed}"


@pytest.mark.parametrize("overlap", [False, True], ids=["at-once", "overlap"])
async def test_killed_in_every_phase_it_ends_bit_identical(
    overlap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.SystemRandom().getrandbits(32)
    luck, phases = random.Random(seed), list(PHASES)
    luck.shuffle(phases)
    orders = [order(phase, luck.randint(1, 10 * number), luck, 1) for number, phase in enumerate(phases, 1)]
    (tmp_path / "plain").mkdir()
    expected = await asyncio.to_thread(plain, tmp_path / "plain", EPOCHS, "--gpu", ranks=1)
    doom = Doom(tmp_path / "doom", monkeypatch)
    doom.give(*orders)
    spec = training(
        EPOCHS,
        f"--out={tmp_path}/out",
        "--gpu",
        checkpoint=CheckpointPolicy(every_steps=5, overlap=overlap),
        workers=Workers(1, min=1),
    )
    async with driving(tmp_path / "run", spec) as driven:
        state = await asyncio.wait_for(driven.task, PATIENCE_SECONDS)
    told = f"seed {seed}, {doom.hits()}, {state.reason}"
    assert state.outcome == "succeeded", told
    assert [hit["phase"] for hit in doom.hits()] == phases, told
    kinds = {attempt.failure.kind for attempt in state.attempts if attempt.failure}
    assert kinds <= {FailureKind.WORKER_LOST, FailureKind.KILLED}, told
    assert (tmp_path / "out").read_text() == expected, told


async def test_killed_and_rescaled_every_sample_counts_once(tmp_path: Path) -> None:
    words = (EPOCHS, "--step-seconds=0.05", "--gpu", "--backend=gloo")
    saves = CheckpointPolicy(every_steps=5, overlap=True, account_samples=True)
    async with driving(
        tmp_path / "run", training(*words, checkpoint=saves, workers=Workers(2, min=1, max=2))
    ) as driven:
        await driven.at_step(10)
        driven.kill_rank(1)
        await driven.until(lambda: len(driven.state.attempts) == 2, "a second attempt")
        await driven.gone_on()
        await driven.scaled(1)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert state.attempt.progress is not None
    assert [stretch.world_size for stretch in state.attempt.progress.stretches] == [2, 1]
    status: Any = driven.run.status()
    assert (status["step"], status["samples"]["seen"]) == (120, 12 * 640)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_a_framework_killed_on_a_gpu_ends_bit_identical(framework: str, tmp_path: Path) -> None:
    alone = Workers(1, min=1)
    expected = left_behind(await undisturbed(framework, tmp_path / "undisturbed", "--gpu", workers=alone))
    assert expected[1:] == STANDING[framework]
    spec = fitting(framework, tmp_path, "--gpu", "--step-seconds=0.1", workers=alone)
    async with driving(tmp_path / "run", spec) as driven:
        for attempt, step in enumerate((5, 14), start=1):
            await driven.until(
                lambda n=attempt, s=step: len(driven.state.attempts) == n and driven.step_now >= s,  # type: ignore[misc]
                f"step {step} of attempt {attempt}",
            )
            driven.kill_rank(0)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 3), state.reason
    each_sample_once(driven, state)
    assert left_behind(tmp_path) == expected


async def test_more_ranks_than_gpus_are_refused_before_they_train(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    spec = training("--gpu", workers=Workers(1, min=1, procs=count + 1))
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    assert f"local rank {count} has no GPU: its worker sees {count}" in (state.reason or "")
