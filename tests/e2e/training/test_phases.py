"""Runs of two trainings, with passes that leave no trace before each, in real processes: killed, and rescaled."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support.cli import Shell
from tests.support.driving import SCRIPTS, Driven, driving, training

pytestmark = pytest.mark.slow

#: Steps of the two: 48 samples twice, and 72 four times, 16 a step.
FIRST, SECOND = 6, 20
PACKAGES = {"lightning": "lightning", "huggingface": "transformers"}


@pytest.fixture(params=["own", "lightning", "huggingface"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name in PACKAGES and importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed")
    return name


def two_trainings(kind: str, folder: Path, *words: str, **changes: Any) -> Any:
    command = (str(SCRIPTS / "two_phases.py"), kind, str(folder / "out"), *words)
    policy = CheckpointPolicy(every_steps=3, account_samples=True)
    return training(command=command, checkpoint=policy, **changes)


def check(driven: Driven, state: RunState) -> None:
    """What journal, status, checkpoints and the account of samples tell."""
    assert state.outcome == "succeeded", state.reason
    uri, store = driven.run.store.uri, driven.run.store
    ended = [one for one in Journal(store).read() if isinstance(one, ev.PhaseCompleted)]
    assert [(one.phase, one.name, one.step, one.steps) for one in ended] == [
        (0, "teach", FIRST, FIRST),
        (1, "learn", FIRST + SECOND, SECOND),
    ]
    shell = Shell(SCRIPTS)
    told = shell("status", uri).stdout
    assert f"phase teach: {FIRST} steps, complete, weight" in told
    assert f"phase learn: {SECOND} steps, complete, weight" in told
    newest = checkpoints.read(store, FIRST + SECOND)
    assert [(one.name, one.steps, one.complete) for one in newest.phases] == [
        ("teach", FIRST, True),
        ("learn", SECOND, True),
    ]
    verified = shell("verify", uri, "--samples", "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    proof = json.loads(verified.stdout)
    told_of = [(one["phase"], one["number"], one["counted"]) for one in proof["epochs"]]
    assert told_of == [(0, 0, 48), (0, 1, 48), *((1, number, 72) for number in range(4))]


def read(folder: Path) -> str:
    return (folder / "out").read_text()


async def ended(kind: str, folder: Path, *words: str, attempts: int = 1) -> str:
    """The digest that a run of two workers ends with."""
    async with driving(folder / "run", two_trainings(kind, folder, *words)) as driven:
        state = await driven.end()
        check(driven, state)
    assert len(state.attempts) == attempts
    return read(folder)


async def test_killed_in_its_second_training_it_ends_bit_identical(kind: str, tmp_path: Path) -> None:
    """Also to one without these passes."""
    quiet = await ended(kind, tmp_path / "quiet", "--quiet")
    killed = await ended(kind, tmp_path / "killed", "--die=11", "--die=17", attempts=3)
    assert killed == quiet


async def test_rescaled_in_its_second_training_each_sample_counts_once(kind: str, tmp_path: Path) -> None:
    await ended(kind, tmp_path / "two", "--plain")
    words = ("--plain", "--die=9", "--step-seconds=0.25")
    spec = two_trainings(kind, tmp_path / "one", *words, workers=Workers(2, min=1, max=4))
    async with driving(tmp_path / "one" / "run", spec) as driven:
        await driven.until(
            lambda: len(driven.state.attempts) == 2 and driven.step_now > 9, "a second attempt"
        )
        driven.run.ask_scale(1, by="test")
        state = await driven.end()
        check(driven, state)
    sizes = [
        stretch.world_size for one in state.attempts if one.progress for stretch in one.progress.stretches
    ]
    assert (sizes[0], sizes[-1]) == (2, 1)
    one, two = (torch.load(tmp_path / name / "out.pt") for name in ("one", "two"))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
