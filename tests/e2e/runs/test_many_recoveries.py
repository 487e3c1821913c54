"""Many deaths of ranks, agents and standby workers, also several at once and during a recovery.

Each time training comes up again, and nothing grows: processes, threads, descriptors, memory.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import Driven, driving, left_over, training
from tests.support.machine import leaks, usage
from tests.support.machine.patience import PATIENCE_SECONDS

KINDS = ("rank", "agent", "node", "standby", "rank and node", "node and standby", "during a recovery")


async def trains(driven: Driven) -> None:
    """Wait until the newest attempt has done steps, and another worker stands by."""
    await driven.gone_on()

    def stands_by() -> bool:
        agents = [driven.files.agent(index) for index in driven.files.standby().nodes]
        return any(agent is not None and agent.alive for agent in agents)

    await driven.until(stands_by, "a standby worker")


def kill_standby(driven: Driven) -> None:
    for index in driven.files.standby().nodes:
        agent = driven.files.agent(index)
        if agent is not None:
            agent.send(signal.SIGKILL)


async def die(driven: Driven, kind: str, luck: random.Random) -> None:
    number, place = driven.state.attempt.number, luck.randrange(2)
    if kind in ("rank", "rank and node"):
        driven.kill_rank(place)
    if kind == "agent":
        driven.kill_worker(place)
    if kind in ("node", "node and standby", "during a recovery"):
        driven.kill_node(place)
    if kind == "rank and node":
        driven.kill_node(1 - place)
    if kind in ("standby", "node and standby"):
        kill_standby(driven)
    if kind == "standby":
        return
    await driven.until(lambda: len(driven.state.attempts) > number, f"attempt {number + 1}")
    if kind == "during a recovery":
        await driven.until(lambda: driven.state.attempt.submitted_at, "its submission")
        members = driven.files.newest_members()
        assert members is not None
        await driven.until(
            lambda: (agent := driven.files.agent(members.nodes[place])) and agent.alive,
            "the worker that came",
        )
        driven.kill_worker(place)
        await driven.until(lambda: len(driven.state.attempts) > number + 1, f"attempt {number + 2}")


@pytest.mark.parametrize(
    ("recoveries", "words"),
    [
        (3, ""),
        pytest.param(200, "", marks=[pytest.mark.slow, pytest.mark.timeout(7200)]),
        pytest.param(
            40, "--stay", marks=[pytest.mark.slow, pytest.mark.timeout(7200), pytest.mark.real_start]
        ),
    ],
)
async def test_it_comes_up_each_time_and_nothing_grows(recoveries: int, words: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")  # noqa: T201
    luck, memory = random.Random(seed), leaks.SharedMemory()
    policy = CheckpointPolicy(every_steps=200, memory_every_steps=2, buddies=True, keep_last=2)
    restart = RestartPolicy(backoff_limit=10_000, backoff_seconds=0.1, backoff_max_seconds=0.2)
    workers = Workers(2, standby=1)
    spec = training(
        "--epochs=1000000",
        "--step-seconds=0.02",
        *words.split(),
        checkpoint=policy,
        restart=restart,
        workers=workers,
    )
    uses, kinds = list[usage.Use](), list[str]()
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(3)
        while len(driven.state.attempts) <= recoveries:
            await trains(driven)
            if len(kinds) % 5 == 0:
                uses.append(usage.of(tmp_path / "run"))
            if len(kinds) % len(KINDS) == 0:
                order = luck.sample(KINDS, len(KINDS))
            kinds.append(order[len(kinds) % len(KINDS)])
            await die(driven, kinds[-1], luck)
        await asyncio.wait_for(driven.gone_on(), PATIENCE_SECONDS)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    told = f"seed {seed}, {len(state.attempts) - 1} recoveries, {uses}"
    print(told)  # noqa: T201
    assert state.outcome == "stopped", told
    assert left_over(tmp_path / "run") == []
    assert (memory.leaks(), leaks.half_written(tmp_path)) == ([], []), told
    assert usage.grows(uses) is None, told
