"""Workers that are lost: others take their places in the same job, beside those that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.local.engine import state_folder
from airflow_elastic.engines.local.host import NodeHost
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.processes import read
from tests.support.driving import Driven, driving, left_over, training

#: A state every other step, which is left out while the one before is on its way; and what ranks do until they notice.
SLACK = 8

BUDDIES = CheckpointPolicy(every_steps=1000, memory_every_steps=2, buddies=True)


def is_exiting(pid: int) -> bool:
    """Whether nothing of a process is left but what the kernel still has to take down."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() == b""
    except OSError:
        return True


async def losing(driven: Driven, worker: int) -> None:
    number = driven.state.attempt.number
    driven.kill_node(worker)
    await driven.until(lambda: len(driven.state.attempts) > number, f"attempt {number + 1}")


async def test_another_worker_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    spec = training("--epochs=8", "--step-seconds=0.05", "--verbose", checkpoint=BUDDIES, workers=Workers(3))
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        agents = [driven.files.agent(index) for index in (0, 1, 2)]
        await losing(driven, 1)
        await driven.gone_on()
        assert [driven.files.agent(index) for index in (0, 1, 2)] == agents
        newest = driven.files.newest_members()
        assert newest is not None
        assert newest.nodes == (0, 3, 2)
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("succeeded", 1)
    before, after = state.attempts
    assert before.failure is not None
    assert (before.failure.kind, before.failure.worker) == (FailureKind.WORKER_LOST, "node-1")
    assert (after.home, after.job, after.workers) == (1, before.job, 3)
    assert after.restored_at >= before.last_step - SLACK > 0
    assert left_over(tmp_path / "run") == []


@pytest.mark.real_start
async def test_a_newcomer_imports_nothing(tmp_path: Path) -> None:
    """Its agent, its fork server and its rank are forks of the host that has imported torch for the first workers.

    A process that begins anew has a command of its own.
    """
    uri = str(tmp_path / "run")
    async with driving(uri, training("--epochs=80", "--step-seconds=0.05", checkpoint=BUDDIES)) as driven:
        await driven.at_step(5)
        host = NodeHost(state_folder(uri)).process()
        assert host is not None
        driven.kill_worker(1)
        await driven.gone_on_in(2)
        assert NodeHost(state_folder(uri)).process() == host
        agent = driven.files.agent(driven.node_at(1))
        (rank,) = driven.called("rank-1")
        assert agent is not None
        assert [parent_of(rank.pid), parent_of(agent.pid)] == [agent.pid, host.pid]
        assert agent.pid in [parent_of(server.pid) for server in driven.called(WAITING)]
        commands = {command_of(process.pid) for process in left_over(uri)}
        assert [command.split("\0")[-3:] for command in commands] == [
            ["--node-host", str(state_folder(uri)), ""]
        ]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def parent_of(pid: int) -> int | None:
    found = read(pid)
    return found.parent if found else None


async def test_a_lead_that_is_lost_is_followed_by_a_newcomer(tmp_path: Path) -> None:
    """Whose ranks are the lost one's; and what the lost agent's ranks were is gone before."""
    spec = training("--epochs=80", "--step-seconds=0.05", checkpoint=BUDDIES)
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(20)
        orphans = [process.pid for process in driven.ranks_of(0)]
        number = driven.state.attempt.number
        driven.kill_worker(0)
        await driven.until(lambda: len(driven.state.attempts) > number, "another attempt")
        await driven.until(lambda: driven.state.attempt.submitted_at, "its submission")
        assert all(read(pid) is None or is_exiting(pid) for pid in orphans)
        await driven.gone_on()
        assert driven.state.attempt.home == 1
        await driven.at_step(driven.step + 2 * SLACK)
        await losing(driven, 1)
        await driven.gone_on()
        newest = driven.files.newest_members()
        assert newest is not None
        assert newest.nodes == (2, 3)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, state.restarts_used) == ("stopped", 2)
    assert [attempt.home for attempt in state.attempts] == [None, 1, 1]
    first, second, third = state.attempts
    assert second.restored_at >= first.last_step - SLACK > 0
    assert third.restored_at >= second.last_step - SLACK > second.restored_at
    assert left_over(tmp_path / "run") == []
