"""There is no room for what training has saved last."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.core.state import RunState
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Health, RestartPolicy
from tests.support.driving import Driven, driving, left_over, training
from tests.support.machine.small_disk import fill_up, small_disk

#: Their only checkpoint is to be the last one.
ONE = {"checkpoint": CheckpointPolicy(every_steps=1000)}
WORDS = ("--epochs=3", "--step-seconds=0.1")


def fill(driven: Driven, ballast: Path) -> None:
    """Leave no room but some for each agent's log, so that it can say that it waits, whatever else it says."""
    for path in driven.files.folder.glob("node-*/agent.log"):
        subprocess.run(["fallocate", "--keep-size", "--length=256KiB", path], check=True)
    fill_up(ballast)


async def wait(driven: Driven) -> None:
    """Until a worker says that it waits for room."""
    said = "its last state is not written; trying again"
    logs = driven.files.folder
    await driven.until(
        lambda: any(said in log.read_text() for log in logs.glob("node-*/agent.log")), "that a worker waits"
    )


def check_saved(driven: Driven, state: RunState) -> None:
    assert state.outcome == "succeeded", state.reason
    assert state.checkpoint is not None
    assert state.checkpoint.step == 30
    assert not checkpoints.problems(driven.run.store, checkpoints.read(driven.run.store, 30))


async def test_it_waits(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with driving(disk / "run", training(*WORDS, **ONE)) as driven:
            await driven.at_step(5)
            fill(driven, disk / "ballast")
            await wait(driven)
            assert not checkpoints.steps(driven.run.store)
            (disk / "ballast").unlink()
            state = await driven.end()
        check_saved(driven, state)
        assert len(state.attempts) == 1
        assert left_over(disk / "run") == []


@pytest.mark.siblings
@pytest.mark.parametrize("full", ["disk", "disk/run/checkpoints"])
async def test_what_ranks_have_saved_that_fail_once_they_have_finished_is_written(
    full: str, tmp_path: Path
) -> None:
    """Of a disk that is full nobody can be told that they have failed."""
    at = tmp_path / full
    at.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        if full == "disk":
            stack.enter_context(small_disk(at))
        spec = training(*WORDS, "--die-late", **ONE)
        async with driving(tmp_path / "disk/run", spec) as driven:
            await driven.at_step(5)
            if full != "disk":
                stack.enter_context(small_disk(at))
            fill(driven, at / "ballast")
            await wait(driven)
            (at / "ballast").unlink()
            state = await driven.end()
            check_saved(driven, state)
    assert len(state.attempts) == 1, "another one would begin where there is nothing left to do"


async def test_a_worker_that_dies_meanwhile_has_taken_it_along(tmp_path: Path) -> None:
    """What the journal needs may still have room. The training is complete, and nobody has it."""
    async with driving(tmp_path / "run", training(*WORDS, **ONE)) as driven:
        await driven.at_step(5)
        with small_disk(tmp_path / "run/checkpoints") as disk:
            fill(driven, disk / "ballast")
            await wait(driven)
            driven.kill_nodes(0, 1)
            await driven.until(lambda: len(driven.state.attempts) > 1, "that it is trained anew")
            (disk / "ballast").unlink()
            state = await driven.end()
            check_saved(driven, state)


@pytest.mark.siblings
@pytest.mark.parametrize(("asked", "outcome"), [(False, "failed"), (True, "stopped")])
async def test_where_no_room_comes_the_run_has_not_succeeded(
    asked: bool, outcome: str, tmp_path: Path
) -> None:
    health = Health(no_progress_seconds=600 if asked else 30)
    spec = training(*WORDS, **ONE, health=health, restart=RestartPolicy(backoff_limit=0))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(5)
        with small_disk(tmp_path / "run/checkpoints") as disk:
            fill(driven, disk / "ballast")
            await wait(driven)
            if asked:
                driven.run.ask_stop(by="test")
            state = await driven.end()
    assert (state.outcome, state.checkpoint) == (outcome, None)
    assert asked or "the last checkpoint could not be written" in state.reason
    assert asked or "the disk is full" in state.reason
