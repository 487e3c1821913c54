"""Standby workers: one of them takes the place of a lost worker, or joins in a scale step, and another one follows."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.control.controller import Controller
from airflow_elastic.core.state import FailureKind, RunState
from airflow_elastic.engines import find_engine
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import Driven, driving, left_over, training
from tests.support.runs.losses import SLACK, goes_on_in_its_job

BUDDIES = CheckpointPolicy(every_steps=1000, memory_every_steps=2, buddies=True)


def one_of_two(**changes: object) -> Workers:
    return Workers(**{"count": 2, "min": 1, "max": 4, "standby": 1, **changes})  # type: ignore[arg-type]


async def ready(driven: Driven, number: int) -> None:
    """Wait until this worker stands by: its agent runs, and it was not named in a generation."""

    def stands_by() -> bool:
        agent = driven.files.agent(number)
        return driven.files.standby().nodes == (number,) and agent is not None and agent.alive

    await driven.until(stands_by, f"node-{number} to stand by")


def asked(driven: Driven) -> list[tuple[tuple[int, ...], bool]]:
    """The standby workers that were asked for, and whether others were lost before."""
    events = Journal(driven.run.store).read()
    return [(one.workers, one.reason is not None) for one in events if isinstance(one, ev.StandbyAsked)]


async def replaced(folder: Path, lose: Callable[[Driven], None]) -> tuple[RunState, int]:
    """A run that loses node-1, and goes on with the worker that stood by; another one follows.

    Returns:
        The run's end, and the step from which it went on.
    """
    spec = training("--epochs=80", "--step-seconds=0.05", checkpoint=BUDDIES, workers=one_of_two())
    async with driving(folder / "run", spec) as driven:
        await driven.at_step(2 * SLACK)
        await ready(driven, 2)
        lost, stood_by = driven.files.agent(1), driven.files.agent(2)
        assert driven.state.checkpoint is None
        lose(driven)
        from_step = await goes_on_in_its_job(driven)
        newest = driven.files.newest_members()
        assert newest is not None
        assert newest.nodes == (0, 2)
        assert driven.files.agent(2) == stood_by
        assert lost is not None
        assert not lost.alive
        await ready(driven, 3)
        assert asked(driven) == [((2,), False), ((3,), False)]
        events = Journal(driven.run.store).read()
        taken = [one.replacements for one in events if isinstance(one, ev.AttemptSubmitted)]
        assert taken == [None, (2,)]
        recovery = await driven.until(lambda: driven.state.attempt.recovery, "what took how long")
        assert recovery.seconds > 0
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert state.outcome == "stopped"
    assert left_over(folder / "run") == []
    return state, from_step


def told(driven: Driven, signal_number: int) -> None:
    """Send this signal to the agent of node-1."""
    agent = driven.files.agent(1)
    assert agent is not None
    os.kill(agent.pid, signal_number)


def gone_dark(driven: Driven) -> None:
    """The agent of node-1 is alive for the engine, and says nothing; its rank is gone."""
    told(driven, signal.SIGSTOP)
    driven.kill_rank(1)


@pytest.mark.parametrize("lose", [partial(Driven.kill_node, place=1), gone_dark], ids=["killed", "gone-dark"])
async def test_a_standby_worker_takes_the_place_of_a_lost_one_and_another_follows(
    lose: Callable[[Driven], None], tmp_path: Path
) -> None:
    state, _ = await replaced(tmp_path, lose)
    first = state.attempts[0].failure
    assert first is not None
    assert (first.kind, state.restarts_used) == (FailureKind.WORKER_LOST, 1), first


async def test_a_standby_worker_takes_the_place_of_one_that_is_asked_to_end(tmp_path: Path) -> None:
    """As before a machine is taken back: the worker saves the step that it is at, and that costs no restart."""
    state, from_step = await replaced(tmp_path, partial(told, signal_number=signal.SIGTERM))
    first = state.attempts[0]
    assert first.failure is not None
    assert (first.failure.kind, state.restarts_used) == (FailureKind.PREEMPTED, 0), first.failure
    assert from_step == first.last_step, "no step was lost"


async def test_a_lost_standby_worker_is_no_failure_and_is_replaced(tmp_path: Path) -> None:
    spec = training("--epochs=80", "--step-seconds=0.05", workers=one_of_two())
    async with driving(tmp_path / "run", spec) as driven:
        await ready(driven, 2)
        agent = driven.files.agent(2)
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        await ready(driven, 3)
        assert asked(driven) == [((2,), False), ((3,), True)]
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (len(state.attempts), state.restarts_used) == (1, 0)
    assert left_over(tmp_path / "run") == []


async def test_two_controllers_ask_for_one_standby_worker(tmp_path: Path) -> None:
    """A triggerer that was taken for dead goes on beside the next one."""
    spec = training("--epochs=80", "--step-seconds=0.05", checkpoint=BUDDIES, workers=one_of_two())
    async with driving(tmp_path / "run", spec) as driven:
        rival = Controller(driven.run.store, find_engine(spec.engine), poll_seconds=0.2)
        driving_too = asyncio.create_task(rival.drive())
        await driven.at_step(2 * SLACK)
        await ready(driven, 2)
        assert driven.state.checkpoint is None
        driven.kill_node(1)
        await goes_on_in_its_job(driven)
        await ready(driven, 3)
        assert asked(driven) == [((2,), False), ((3,), False)]
        driven.run.ask_stop(by="test")
        state = await driven.end()
        assert (await driving_too).outcome == state.outcome == "stopped"
        assert (len(state.attempts), state.restarts_used) == (2, 1)
    assert left_over(tmp_path / "run") == []


async def test_a_scale_step_takes_the_standby_worker_first(tmp_path: Path) -> None:
    spec = training("--epochs=80", "--step-seconds=0.05", workers=one_of_two())
    async with driving(tmp_path / "run", spec) as driven:
        await driven.at_step(5)
        await ready(driven, 2)
        await driven.scaled(3)
        newest = driven.files.newest_members()
        assert newest is not None
        assert newest.nodes == (0, 1, 2)
        await ready(driven, 3)
        await driven.scaled(1)
        assert driven.files.standby().nodes == (3,)
        driven.run.ask_stop(by="test")
        await driven.end()
    assert left_over(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"launcher": "python"}, "the launcher python"),
        ({"restart": RestartPolicy(policy="Never")}, "the restart policy is Never"),
        ({"engine": "pytorchjob", "engine_options": {"image": "trainer"}}, "the engine pytorchjob"),
    ],
)
def test_standby_workers_without_use_are_refused(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    spec = training(workers=one_of_two(count=1, min=1, max=1), **changes)
    with pytest.raises(SpecError, match=why):
        start_run(open_store(str(tmp_path / "run")), spec, engine=find_engine(spec.engine))
    assert not (tmp_path / "run").exists()
