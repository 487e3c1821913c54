"""Ranks that die under agents that live: the next attempt begins in the same job, from the agents' memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.driving import SCRIPTS, Driven, driving, left_over, training


async def losing_a_rank(driven: Driven, rank: int) -> None:
    number = driven.state.attempt.number
    driven.kill_rank(rank)
    await driven.until(lambda: len(driven.state.attempts) > number, f"attempt {number + 1}")


async def test_a_killed_rank_costs_no_agent_and_no_reading(tmp_path: Path) -> None:
    spec = training("--epochs=8", "--step-seconds=0.05", "--verbose")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.until(lambda: checkpoints.steps(driven.run.store), "a checkpoint")
        agents = [driven.files.agent(0), driven.files.agent(1)]
        await losing_a_rank(driven, 1)
        await driven.at_step(1)
        assert [driven.files.agent(0), driven.files.agent(1)] == agents
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("succeeded", 1)
    before, after = state.attempts
    assert before.failure is not None
    assert (before.failure.kind, before.failure.worker) == (FailureKind.KILLED, "node-1")
    assert (after.home, after.job) == (1, before.job)
    assert after.progress is not None
    assert after.progress.stretches[0].from_step >= after.from_step > 0
    assert [stretch.generation for stretch in after.progress.stretches] == [2]
    for rank in (0, 1):
        log = (tmp_path / "run" / "logs" / "attempt-0002" / f"g02-rank-{rank}.log").read_text()
        found = re.search(r"(\S+ \w+) from this worker's memory, .*? (\S+ \w+) from storage", log)
        assert found is not None, log
        memory, storage = found.groups()
        assert (memory != "0 B", storage) == (True, "0 B")
    assert left_over(tmp_path / "run") == []


async def test_what_was_staged_when_a_rank_died_is_what_the_next_one_begins_from(tmp_path: Path) -> None:
    """Nobody has to have written it yet: the agents do, before anything new starts."""
    spec = training("--epochs=8", "--step-seconds=0.05", checkpoint=CheckpointPolicy(every_steps=1))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(5)
        await losing_a_rank(driven, 0)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    before, after = state.attempts
    assert before.progress is not None
    assert after.progress is not None
    (stretch,) = after.progress.stretches
    assert stretch.from_step >= before.last_step - 2, (
        "more than the step in flight, and one in memory, was lost"
    )


async def test_what_was_in_memory_only_is_gone_on_from_too(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2)
    spec = training("--epochs=8", "--step-seconds=0.05", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        assert checkpoints.steps(driven.run.store) == []
        await losing_a_rank(driven, 0)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    before, after = state.attempts
    assert after.progress is not None
    assert after.progress.stretches[0].from_step >= before.last_step - 4 > 0


@pytest.mark.siblings
@pytest.mark.parametrize("never", [True, False], ids=["the run ends", "other agents follow"])
async def test_what_was_in_memory_only_is_written_where_agents_have_to_end(
    tmp_path: Path, never: bool
) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2)
    hang = () if never else ("--hang-at=40",)
    spec = training("--epochs=8", "--step-seconds=0.05", *hang, checkpoint=policy)
    if never:
        spec = replace(spec, restart=replace(spec.restart, policy="Never"))
    else:
        spec = replace(spec, health=replace(spec.health, no_progress_seconds=3.0))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        assert checkpoints.steps(driven.run.store) == []
        if never:
            driven.kill_rank(1)
        state = await driven.end()
    assert state.outcome == ("failed" if never else "succeeded")
    first = state.attempts[0]
    assert first.failure is not None
    assert first.failure.kind is (FailureKind.KILLED if never else FailureKind.NO_PROGRESS)
    assert state.checkpoint is not None
    assert checkpoints.steps(driven.run.store)[0] >= first.last_step - 4 > 0
    assert left_over(tmp_path / "run") == []


async def test_an_error_that_comes_again_gets_new_workers_and_then_ends(tmp_path: Path) -> None:
    spec = training("--epochs=8", "--fail-at=3", checkpoint=CheckpointPolicy(every_steps=50))
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert state.outcome == "failed"
    assert [attempt.home for attempt in state.attempts] == [None, 1]
    assert "a bad batch before step 3" in (state.reason or "")
    assert "the same error at step 2 twice" in (state.reason or "")


async def test_workers_may_join_a_job_that_goes_on_in_place(tmp_path: Path) -> None:
    spec = training("--epochs=40", "--step-seconds=0.02")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(7)
        await losing_a_rank(driven, 1)
        await driven.gone_on()  # a job is only kept for another attempt if this one did a step
        driven.run.ask_scale(3, by="test")
        await driven.until(lambda: driven.state.attempt.workers == 3, "a third worker")
        progress = driven.run.progress
        await driven.until(lambda: (p := progress(driven.state)) and p.world_size == 3, "three ranks")
        driven.kill_worker(2)
        await driven.until(lambda: len(driven.state.attempts) == 3, "attempt 3")
        assert driven.state.attempt.replaces == (2,)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert state.outcome == "stopped"
    assert left_over(tmp_path / "run") == []


async def test_a_worker_that_is_done_comes_back_where_a_peer_fails_at_the_very_end(tmp_path: Path) -> None:
    """And what the rank that died has started does not live on into the next attempt."""
    child = tmp_path / "child"
    spec = training(command=(str(SCRIPTS / "faults/heir.py"), f"--child={child}"))
    async with driving(tmp_path / "run", spec) as driven:
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("succeeded", 1), state.reason
    before, after = state.attempts
    assert before.failure is not None
    assert (before.failure.kind, after.home) == (FailureKind.KILLED, 1)
    assert child.with_suffix(".gone").exists(), "the second attempt's rank did not come to its end"


@pytest.mark.real_start
async def test_ranks_that_follow_have_torch_when_they_start(tmp_path: Path) -> None:
    """Each worker has a process that has imported it, and is forked for each of its ranks."""
    spec = training("--epochs=1000", "--step-seconds=0.05")
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(1)
        await driven.until(lambda: driven.fork_servers() == 2, "fork servers")
        await losing_a_rank(driven, 1)
        progress = driven.run.progress
        await driven.until(
            lambda: (p := progress(driven.state)) and p.attempt == 2 and p.stretches, "new ranks"
        )
        for index in (0, 1):
            text = (driven.files.node(index) / "agent.log").read_text()
            assert f"generation 2: rank {index} started, by a fork" in text
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("stopped", 1)
    assert left_over(tmp_path / "run") == []
