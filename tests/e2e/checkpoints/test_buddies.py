"""Workers that keep each other's states: one that is lost takes nothing along that had been saved into memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from tests.support.driving import Driven, driving, left_over, training

#: A state every other step, which is left out while the one before is on its way; and what ranks do until they notice.
SLACK = 8


async def losing(driven: Driven, worker: int) -> None:
    driven.kill_node(worker)
    await driven.until(lambda: len(driven.state.attempts) == 2, "a second attempt")


async def test_a_lead_that_is_lost_takes_nothing_along(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2, buddies=True)
    spec = training("--epochs=8", "--step-seconds=0.05", checkpoint=policy)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        await losing(driven, 0)
        await driven.at_step(await driven.gone_on() + 3)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    before, after = state.attempts
    assert before.failure is not None
    assert before.failure.kind is FailureKind.WORKER_LOST
    assert after.restored_at >= before.last_step - SLACK > 0
    assert left_over(tmp_path / "run") == []


async def test_the_ring_follows_a_scale_step(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2, buddies=True)
    spec = training(
        "--epochs=400", "--step-seconds=0.05", checkpoint=policy, workers=Workers(2, min=1, max=3)
    )
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(6)
        await driven.scaled(3)
        saved = max(checkpoints.steps(driven.run.store))
        await driven.at_step(saved + 2 * SLACK)
        await losing(driven, 2)
        await driven.gone_on()
        driven.run.ask_stop(by="test")
        state = await driven.end()
    before, after = state.attempts
    assert after.restored_at >= before.last_step - SLACK > saved


@pytest.mark.slow  # it shows that the others are not for nothing
async def test_without_buddies_it_costs_everything(tmp_path: Path) -> None:
    policy = CheckpointPolicy(every_steps=1000, memory_every_steps=2)
    async with driving(
        tmp_path / "run", training("--epochs=4", "--step-seconds=0.05", checkpoint=policy)
    ) as driven:
        await driven.at_step(20)
        await losing(driven, 1)
        assert await driven.gone_on() == 0
        driven.run.ask_stop(by="test")
        await driven.end()
