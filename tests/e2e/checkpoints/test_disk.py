"""States on the workers' own disks: what all agents lose with their memory at once, the next attempt finds there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.sample_accounts import read_accounts
from airflow_elastic.cli.main import cli
from airflow_elastic.core.checkpoints.sample_accounts import prove
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from airflow_elastic.views.cache import Reader
from airflow_elastic.views.checkpoints import listed
from tests.support.driving import Driven, driving, left_over, training

#: A state every other step, of which one may be left out while another is written; and what ranks do meanwhile.
SLACK = 8


async def lose_everything(driven: Driven) -> None:
    """All nodes at once, with what their agents hold in memory."""
    driven.kill_nodes(*range(driven.state.attempt.workers))
    # Where one of them is seen to be lost first, the attempt that was to go on with the others comes to nothing.
    await driven.until(lambda: len(driven.state.attempts) > 1 and not driven.state.attempt.home, "a new job")


async def test_it_costs_what_came_after_the_newest_state_on_disks(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    policy = CheckpointPolicy(every_steps=1000, disk=str(disk), disk_every_steps=2, account_samples=True)
    words = ("--epochs=6", "--step-seconds=0.1")
    whole = training(*words, f"--out={tmp_path}/whole")
    async with driving(tmp_path / "whole-run", whole) as driven:
        assert (await driven.end()).outcome == "succeeded"
    async with driving(
        tmp_path / "run", training(*words, f"--out={tmp_path}/out", checkpoint=policy)
    ) as driven:
        await driven.at_step(20)
        assert checkpoints.steps(driven.run.store) == []
        await lose_everything(driven)
        state = await driven.end()
        proof = prove(list(read_accounts(driven.run.store)), 60)
    assert state.outcome == "succeeded", state.reason
    before, after = state.attempts[0], state.attempt
    assert state.restarts_used == 1
    assert before.failure is not None
    assert before.failure.kind is FailureKind.WORKER_LOST
    assert after.restored_at >= before.last_step - SLACK > 0
    assert (tmp_path / "out").read_text() == (tmp_path / "whole").read_text()
    assert proof.holds
    assert list(disk.iterdir()) == [], "a run that is done leaves nothing there"
    assert left_over(tmp_path / "run") == []


async def test_the_list_says_which_tiers_have_it_who_uses_it_and_when_it_was_verified(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    policy = CheckpointPolicy(every_steps=5, disk=str(tmp_path / "disk"), keep_last=100)
    spec = training("--epochs=12", "--step-seconds=0.1", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        store = driven.run.store

        def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = listed(Reader(store))["checkpoints"]
            return found

        # A worker looks at its disk every ten seconds.
        await driven.until(lambda: any("disk" in row["tiers"] for row in rows()), "a state on all disks")
        await lose_everything(driven)
        await driven.at_step(driven.state.attempts[0].last_step + 6)
        await driven.until(lambda: any(row["verified_at"] for row in rows()), "a record of the restore")
        driven.run.ask_stop(by="test")
        state = await driven.end()
    began = state.attempt.restored_at
    (row,) = (row for row in rows() if row["step"] == began)
    assert row["used_by"] == [f"attempt {state.attempt.number}"]
    assert (row["verified"], row["verified_by"]) == (True, f"ranks of attempt {state.attempt.number}")
    assert state.attempts[0].gone_at is not None
    assert state.attempts[0].planned_at < row["verified_at"] < time.time()
    told = CliRunner().invoke(cli, ["verify", str(tmp_path / "run")], standalone_mode=False)
    assert told.return_value == 0, told.output
    assert all(row["verified_by"].endswith(", by `verify`") for row in rows())
    words = ["checkpoint", "list", str(tmp_path / "run")]
    table = CliRunner(env={"COLUMNS": "200"}).invoke(cli, words, standalone_mode=False).stdout
    assert f"used by attempt {state.attempt.number}" in table


async def test_a_worker_that_is_not_needed_any_more_leaves_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    policy = CheckpointPolicy(every_steps=10, disk=str(tmp_path / "disk"), disk_every_steps=5)
    spec = training("--epochs=6", "--step-seconds=0.1", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(12)
        await driven.scaled(1)
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.slow  # of every commit: that of buddies, who follow in the same way
async def test_it_follows_a_scale_step(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000, disk=str(tmp_path), disk_every_steps=2)
    spec = training("--epochs=12", "--step-seconds=0.05", checkpoint=policy, workers=Workers(2, min=1, max=3))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(6)
        await driven.scaled(3)
        saved = max(checkpoints.steps(driven.run.store))
        await driven.at_step(saved + 2 * SLACK)
        await lose_everything(driven)
        await driven.until(lambda: driven.step, "a step")
        driven.run.ask_stop(by="test")
        state = await driven.end()
    before, after = state.attempts[0], state.attempt
    assert state.restarts_used == 1
    assert after.restored_at >= before.last_step - SLACK > saved


async def test_a_run_does_not_begin_with_a_disk_that_no_worker_has(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=5, disk=str(tmp_path / "none"), disk_every_steps=1)
    async with driving(tmp_path / "run", training(checkpoint=policy)) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("failed", 1)
    failure = state.attempt.failure
    assert failure is not None
    assert failure.kind is FailureKind.BAD_INPUT
    assert f"there is no folder {tmp_path}/none on this machine: mount one, or name another" in failure.reason
    assert state.attempt.last_step == 0
    assert not (tmp_path / "none").exists()
    assert left_over(tmp_path / "run") == []


async def test_a_disk_that_goes_later_costs_nothing_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    policy = CheckpointPolicy(every_steps=5, disk=str(tmp_path / "disk"), disk_every_steps=1)
    spec = training("--epochs=20", "--step-seconds=0.1", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(2)
        (tmp_path / "disk").rename(tmp_path / "gone")

        def told() -> list[
            ev.SaveFailed
        ]:  # by events: the state forgets it with the next checkpoint, soon after
            return [one for one in Journal(driven.run.store).read() if isinstance(one, ev.SaveFailed)]

        assert "there is no folder" in (await driven.until(told, "that it is told"))[0].reason
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1)
