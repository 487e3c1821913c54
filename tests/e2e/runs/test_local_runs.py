"""Runs on the local engine do what they are asked to, and tell what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.core.health.start_times import MARGIN
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.events import Stalled
from airflow_elastic.spec.run import Health, RestartPolicy, ScaleStep, Workers
from tests.support.driving import SCRIPTS, driving, left_over, training


async def test_stop_saves_the_very_step_and_leaves_nothing(tmp_path: Path) -> None:
    spec = training("--epochs=100", "--step-seconds=0.02", checkpoint=CheckpointPolicy(every_steps=1000))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(7)
        driven.run.ask_stop(by="the test")
        state = await driven.end()
    assert (state.outcome, state.reason) == ("stopped", "stopped by the test")
    assert state.checkpoint is not None
    assert state.attempt.progress is not None
    assert state.checkpoint.step == state.attempt.progress.step >= 7
    assert checkpoints.read(driven.run.store, state.checkpoint.step).reason == "breakpoint"
    assert left_over(tmp_path) == []


async def test_a_checkpoint_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    spec = training("--epochs=100", "--step-seconds=0.02", checkpoint=CheckpointPolicy(every_steps=10_000))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(3)
        driven.run.ask_save(by="test")
        await driven.until(lambda: driven.state.checkpoint, "a checkpoint")
        driven.run.ask_save(by="test")
        await driven.until(lambda: driven.state.checkpoints == 2, "a second one")
    assert checkpoints.read(driven.run.store, checkpoints.steps(driven.run.store)[-1]).reason == "requested"


async def test_a_code_error_shows_the_first_failing_ranks_traceback_and_does_not_loop(tmp_path: Path) -> None:
    async with driving(tmp_path, training("--fail-at=8")) as driven:
        state = await driven.end()
    assert state.outcome == "failed"
    assert len(state.attempts) == 2
    failure = state.attempts[0].failure
    assert failure is not None
    assert (failure.kind, failure.error) == (FailureKind.CODE_ERROR, "ValueError: a bad batch before step 8")
    assert "train.py" in (failure.traceback or "")
    assert "the same error at step 7 twice" in (state.reason or "")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_rank_that_hangs_is_named_and_a_hang_before_the_next_first_step_is_ended_soon(
    again: bool, tmp_path: Path
) -> None:
    """Rank 1 hangs, and rank 0 waits for it in a collective; in the next attempt both hang before their first step."""
    health = Health(no_progress_seconds=4.0)
    words = ("--hang-at=8", "--hang-rank=1", *(("--hang-again",) if again else ()))
    async with driving(tmp_path, training(*words, health=health)) as driven:
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        if again:
            await driven.until(lambda: len(driven.state.attempts) == 3, "the third attempt")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    first, second = state.attempts[:2]
    stalled = [event for event in Journal(driven.run.store).read() if isinstance(event, Stalled)]
    assert [(event.attempt, event.step) for event in stalled[: 1 + again]] == [(1, 7), (2, None)][: 1 + again]

    assert first.failure is not None
    assert (first.failure.kind, first.failure.rank) == (FailureKind.NO_PROGRESS, 1)
    told = (
        r" s since step 7; rank 1 stands at train\.py:\d+ in training, rank 0 at train\.py:\d+ in training$"
    )
    assert re.search(told, first.failure.reason)
    assert "rank 1, elsewhere than the others (most recent call first):" in (first.failure.traceback or "")
    assert {stack.ranks: stack.elsewhere for stack in stalled[0].stacks} == {(0,): False, (1,): True}
    stands = {stack.ranks: stack.frames for stack in stalled[0].stacks}
    assert "train.py:" in stands[(1,)][0], "it stands in the script itself"
    assert "train.py:" not in stands[(0,)][0], "it waits in torch"
    for rank in (0, 1):
        log = (tmp_path / f"logs/attempt-0001/g01-rank-{rank}.log").read_text()
        assert "(most recent call first):" in log
        assert 'train.py", line ' in log

    if not again:
        return
    assert first.progress is not None
    (start,) = first.progress.stretches
    assert start.first_step_at is not None
    longest = start.first_step_at - start.started_at
    limit = MARGIN * longest + health.no_progress_seconds
    assert (stalled[1].longest_start, stalled[1].limit_seconds) == (longest, limit)
    assert limit < health.start_seconds, "which would have been waited for"
    assert second.failure is not None
    assert second.failure.kind is FailureKind.NO_PROGRESS
    said = f"no first step within {limit:.0f} s; earlier starts took up to {longest:.0f} s; ranks 0, 1 at train.py:"
    assert said in second.failure.reason
    assert "train.py:" in (second.failure.traceback or "")


async def test_a_planned_scale_step_happens_at_its_step(tmp_path: Path) -> None:
    spec = training("--epochs=6", "--step-seconds=0.05", scaling=(ScaleStep(3, at_step=10),))
    async with driving(tmp_path, spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("succeeded", 1, 0)
    assert state.attempt.progress is not None
    assert [stretch.world_size for stretch in state.attempt.progress.stretches] == [2, 3]
    assert state.attempt.progress.stretches[1].from_step >= 10


@pytest.mark.slow
@pytest.mark.slow
async def test_any_sequence_of_scale_steps_at_any_pace_loses_nobody(tmp_path: Path) -> None:
    """It trains on in its first attempt, and in the end with whom was wanted last, every step done once."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    luck = random.Random(seed)
    spec = training("--epochs=4000", "--step-seconds=0.02", workers=Workers(3, min=1, max=4))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(5)
        wanted = 3
        for _ in range(20):
            wanted = luck.choice([workers for workers in (1, 2, 3, 4) if workers != wanted])
            driven.run.ask_scale(wanted, by="test")
            await asyncio.sleep(luck.choice((0.0, 0.05, 0.3, 1.0, 3.0)))  # the pace, which is what is tried
        await driven.scaled(wanted)
        await driven.at_step(driven.step + 5)
        newest = driven.files.newest_members()
        assert newest is not None
        assert len(newest.nodes) == wanted
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert [attempt.failure for attempt in state.attempts] == [None]
    assert (state.outcome, state.restarts_used) == ("stopped", 0)
    assert state.attempt.progress is not None
    ends = [(stretch.from_step, stretch.to_step) for stretch in state.attempt.progress.stretches]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends)), ends
    assert left_over(tmp_path / "run") == []


@pytest.mark.siblings
@pytest.mark.parametrize("launcher", ["accelerate", "torchrun-plain"])
async def test_launchers_that_do_not_scale_in_place_are_resubmitted(launcher: str, tmp_path: Path) -> None:
    spec = training("--epochs=5", "--step-seconds=0.05", launcher=launcher, workers=Workers(2, min=1, max=2))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(8)
        driven.run.ask_scale(1, by="test")
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert [attempt.cause for attempt in state.attempts] == [Cause.SCALE_STEP, Cause.SUCCEEDED]
    first, second = state.attempts
    assert first.progress is not None
    assert second.from_step == first.progress.step >= 8
    assert left_over(tmp_path) == []


async def test_several_ranks_a_worker(tmp_path: Path) -> None:
    spec = training("--epochs=20", "--step-seconds=0.02", workers=Workers(1, procs=2))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(7)
        driven.kill_rank(1)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    failure = state.attempts[0].failure
    assert failure is not None
    assert (failure.kind, failure.rank) == (FailureKind.KILLED, 1)
    assert state.attempt.progress is not None
    assert state.attempt.progress.world_size == 2


async def test_the_deadline_holds_over_all_attempts(tmp_path: Path) -> None:
    spec = training("--epochs=1000", "--step-seconds=0.02", active_deadline_seconds=8)
    async with driving(tmp_path, spec) as driven:
        state = await driven.end()
    assert (state.outcome, state.attempt.cause) == ("failed", Cause.DEADLINE)
    assert "deadline of 8 s" in (state.reason or "")
    assert left_over(tmp_path) == []


async def test_never_means_never(tmp_path: Path) -> None:
    spec = training("--epochs=100", "--step-seconds=0.02", restart=RestartPolicy(policy="Never"))
    async with driving(tmp_path, spec) as driven:
        await driven.at_step(2)
        driven.kill_worker(1)
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    assert left_over(tmp_path) == []


@pytest.mark.siblings
@pytest.mark.parametrize("launcher", ["torchrun", "python"])
async def test_a_script_that_knows_nothing_of_us_has_its_grace_and_its_place(
    launcher: str, tmp_path: Path
) -> None:
    spec = training(command=(str(SCRIPTS / "faults/goodbye.py"),), launcher=launcher)
    async with driving(tmp_path, spec) as driven:
        logs = [tmp_path / f"logs/attempt-0001/g01-rank-{rank}.log" for rank in (0, 1)]
        await driven.until(
            lambda: all(log.is_file() and "at work" in log.read_text() for log in logs), "work"
        )
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert state.outcome == "stopped"
    assert [(tmp_path / f"user/saved-by-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    assert left_over(tmp_path) == []


async def test_a_rank_that_holds_the_others_up_is_told(tmp_path: Path) -> None:
    """From outside both are equally slow: each step ends when the slowest has come."""
    spec = training("--epochs=400", "--lag=1")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: driven.run.status()["stragglers"] == [1], "the straggler")
        driven.run.ask_stop(by="test")
        state = await driven.end()
    ranks = state.attempts[0].progress.ranks if state.attempts[0].progress else ()
    assert [rank.forward_seconds > 0.02 for rank in ranks] == [False, True], ranks


async def test_a_training_that_diverges_is_still_told_and_its_checkpoints_still_load(tmp_path: Path) -> None:
    spec = training("--epochs=20", "--lr=1e30")
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    progress = state.attempt.progress
    assert progress is not None
    assert (progress.loss, progress.metrics) == (None, {}), "JSON has no NaN"
    assert all(rank.memory_bytes for rank in progress.ranks), "a bad loss cost all that stood beside it"
    store = driven.run.store
    assert [
        checkpoints.problems(store, checkpoints.read(store, step)) for step in checkpoints.steps(store)
    ] == [[]] * 3


@pytest.mark.siblings
@pytest.mark.parametrize("launcher", ["torchrun", "torchrun-plain"])
async def test_a_wrong_argument_is_told_in_the_scripts_own_words_and_not_tried_again(
    tmp_path: Path, launcher: str
) -> None:
    async with driving(tmp_path, training("--epochs=three", launcher=launcher)) as driven:
        state = await driven.end()
    assert state.outcome == "failed"
    assert len(state.attempts) == 1
    failure = state.attempt.failure
    assert failure is not None
    assert (failure.kind, failure.exit_code) == (FailureKind.BAD_ARGUMENTS, 2)
    assert "error: " in (state.reason or "")
    assert "usage: train.py" in (failure.traceback or "")
