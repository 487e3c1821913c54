"""Ranks in `run.train` outlive their generation: the same process goes on, and ends with the same bytes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import SCRIPTS, Driven, driving, left_over, plain, training
from tests.support.machine import leaks


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return plain(tmp_path_factory.mktemp("plain"), "--epochs=12")


def pid_of(driven: Driven, rank: int) -> int:
    (process,) = driven.called(f"rank-{rank}")
    return process.pid


async def test_a_killed_rank_takes_no_other_along(tmp_path: Path, undisturbed: str) -> None:
    spec = training("--epochs=12", "--step-seconds=0.05", "--stay", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        before = pid_of(driven, 0)
        driven.kill_rank(1)
        await driven.gone_on_in(2)
        assert pid_of(driven, 0) == before
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed
    assert left_over(tmp_path / "run") == []


async def test_a_killed_agent_takes_no_ranks_of_others_along(tmp_path: Path, undisturbed: str) -> None:
    spec = training("--epochs=12", "--step-seconds=0.05", "--stay", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        before = pid_of(driven, 0)
        driven.kill_worker(1)
        await driven.gone_on_in(2)
        assert pid_of(driven, 0) == before
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed


async def test_a_scale_step_keeps_the_ranks_that_are_there(tmp_path: Path) -> None:
    spec = training("--epochs=60", "--step-seconds=0.05", "--stay")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(10)
        before = [pid_of(driven, rank) for rank in (0, 1)]
        await driven.scaled(3)
        assert [pid_of(driven, rank) for rank in (0, 1)] == before
        await driven.scaled(2)
        assert [pid_of(driven, rank) for rank in (0, 1)] == before
        assert len(driven.state.attempts) == 1


async def test_an_error_of_the_script_is_reported_once(tmp_path: Path) -> None:
    spec = training("--stay", "--fail-at=12", restart=RestartPolicy(backoff_limit=0))
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    failure = state.attempts[-1].failure
    assert failure is not None
    assert (state.outcome, failure.kind) == ("failed", FailureKind.CODE_ERROR)
    assert "a bad batch before step 12" in (failure.error or "")
    assert left_over(tmp_path / "run") == []


async def test_a_rank_that_does_not_leave_is_ended(tmp_path: Path, undisturbed: str) -> None:
    """Rank 1 stands still outside of collectives, so rank 0 waits for it in one. Rank 0 leaves, rank 1 is replaced."""
    words = ("--epochs=12", "--stay", "--hang-at=30", "--hang-rank=1", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", training(*words, workers=Workers(3, min=1, max=4))) as driven:
        await driven.until(lambda: driven.step_now >= 29, "step 29")
        before = [pid_of(driven, rank) for rank in (0, 1)]
        driven.kill_rank(2)
        await driven.gone_on_in(2)
        after = [pid_of(driven, rank) for rank in (0, 1)]
        assert after[0] == before[0]
        assert after[1] != before[1]
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason


async def test_what_is_made_before_stays_and_each_function_is_called_again(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    undisturbed = plain(tmp_path / "plain", script="stays.py")
    command = (str(SCRIPTS / "stays.py"), "--step-seconds=0.1", f"--out={tmp_path}/out")
    async with driving(tmp_path / "run", training(command=command)) as driven:
        await driven.until(lambda: driven.step_now >= 40, "step 40")  # of the second function
        driven.kill_rank(1)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 2), state.reason
    assert (tmp_path / "out").read_text() == undisturbed
    first, second = (calls(tmp_path / "run", generation) for generation in (1, 2))
    assert [call for call, _ in first + second] == [
        "first: call 1",
        "second: call 1",
        "first: call 2",
        "second: call 2",
    ]
    assert len({where for _, where in first + second}) == 1  # the same process, and the same model


def calls(uri: Path, generation: int) -> list[list[str]]:
    """What rank 0 has printed about its calls: the call, and the process with its model."""
    store = open_store(f"{uri}")
    log = store.local_path(layout.attempt_logs(generation) + layout.rank_log(generation, 0))
    assert log is not None
    return [line.split(" in ") for line in log.read_text().splitlines() if ": call " in line]


@pytest.mark.parametrize(
    ("tiers", "kills"),
    [
        ("memory", 4),
        pytest.param("memory", 50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
        pytest.param("storage", 50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
async def test_killed_at_random_it_ends_bit_identical(
    tiers: str, kills: int, tmp_path: Path, undisturbed: str
) -> None:
    """With states in memory also beside a standby worker, which takes the place of each worker that is lost."""
    seed = random.SystemRandom().getrandbits(32)
    luck, memory = random.Random(seed), leaks.SharedMemory()
    more = {"memory_every_steps": 2, "buddies": True} if tiers == "memory" else {}
    policy = CheckpointPolicy(every_steps=5, overlap=luck.random() < 0.5, **more)
    words = ("--epochs=12", "--step-seconds=0.1", "--stay", f"--out={tmp_path}/out")
    workers = Workers(2, min=1, max=4, standby=1 if tiers == "memory" else 0)
    async with driving(tmp_path / "run", training(*words, checkpoint=policy, workers=workers)) as driven:
        # Before the first checkpoint, a rank that stays with a trained model is refused.
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
        await driven.killed_at_random(kills, luck)
        state = await driven.end()
    assert state.outcome == "succeeded", f"seed {seed}: {state.reason}"
    assert len(state.attempts) == kills + 1, f"seed {seed}"
    assert (tmp_path / "out").read_text() == undisturbed, f"seed {seed}"
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), f"seed {seed}"
