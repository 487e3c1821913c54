"""A scale step takes its time beside what else a controller does, and one at a time is at work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from airflow_elastic.control.scaling.steps import Scaling
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.engines.api import Job
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Scale
from airflow_elastic.spec.errors import EngineError, StoreError
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.engines.api import Engine

SPEC = RunSpec(("t.py",), workers=Workers(3, min=1, max=4))
JOB = Job("/run", SPEC, 1, 3)


class Slow:
    """An engine whose steps take until they are let go."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def scale(self, job: Job, workers: int) -> None:
        self.asked.append(workers)
        await self.go.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def engine() -> Slow:
    return Slow()


@pytest.fixture
def wake() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
def scaling(engine: Slow, wake: asyncio.Event) -> Scaling:
    return Scaling(cast("Engine", engine), wake, lambda: 7.0)


def live(target: int = 3) -> RunState:
    state = evolve(create(ev.RunCreated(0.0, SPEC, True)), ev.AttemptSubmitted(1.0, 1, "job"))
    return evolve(state, ev.ScaleRequested(2.0, "r", target, "test"))


async def test_a_quick_step_is_done_at_once(scaling: Scaling, engine: Slow) -> None:
    engine.go.set()
    assert await scaling.carry_out(Scale(1, 2), JOB) == ev.Scaled(7.0, 1, 2)


async def test_a_slow_step_wakes_the_controller_when_it_is_done(
    scaling: Scaling, engine: Slow, wake: asyncio.Event
) -> None:
    """And is told as what it was, though another number is wanted by then."""
    assert await scaling.carry_out(Scale(1, 2), JOB) is None
    assert await scaling.carry_out(Scale(1, 4), JOB) is None
    assert not wake.is_set()
    engine.go.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await wake.wait()
    assert await scaling.carry_out(Scale(1, 4), JOB) == ev.Scaled(7.0, 1, 2)
    assert engine.asked == [2]
    assert await scaling.carry_out(Scale(1, 4), JOB) == ev.Scaled(7.0, 1, 4)


async def test_a_step_that_the_engine_cannot_do_is_told(scaling: Scaling, engine: Slow) -> None:
    engine.go.set()
    engine.error = EngineError("no")
    assert await scaling.carry_out(Scale(1, 2), JOB) == ev.ScaleFailed(7.0, 1, 2, "no")
    engine.error = StoreError("away")
    with pytest.raises(StoreError):
        await scaling.carry_out(Scale(1, 2), JOB)
    engine.error = None
    assert await scaling.carry_out(Scale(1, 2), JOB) == ev.Scaled(7.0, 1, 2)


async def test_after_one_that_was_broken_off_the_wanted_number_is_asked_for_once(
    scaling: Scaling, engine: Slow
) -> None:
    """It may have been done, whatever the journal says."""
    assert scaling.due(live()) == ()
    assert await scaling.carry_out(Scale(1, 2), JOB) is None
    await scaling.end()
    assert scaling.due(live(2)) == (Scale(1, 2),)
    assert scaling.due(live(3)) == (Scale(1, 3),)
    engine.go.set()
    assert await scaling.carry_out(Scale(1, 3), JOB) == ev.Scaled(7.0, 1, 3)
    assert scaling.due(live(3)) == ()
    assert engine.asked == [2, 3]
