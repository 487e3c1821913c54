"""What the autoscaler collects, when it says something, and what errors of an engine mean to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_elastic.control.scaling.autoscaler import Autoscaler
from airflow_elastic.core.machine import evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.engines.api import Job
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.scaling.observation import Capacity
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from airflow_elastic.spec.status import Progress, Stretch, WorkerPhase, WorkerStatus
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import LIVE, job, spec, story

POLICY = ScalingPolicy(capacity=CapacityRule(), interval_seconds=10, up_seconds=30, down_seconds=60)
RUN = spec(workers=Workers(2, min=1, max=8), scaling_policy=POLICY)
THERE = job(*(WorkerStatus(f"node-{i}", WorkerPhase.RUNNING) for i in range(2)))
TRAINS = Progress(
    attempt=1,
    at=100.0,
    step=100,
    total_steps=100_000,
    attached=True,
    stretches=(
        Stretch(
            1, 2, 2, started_at=1.0, first_step_at=2.0, last_step_at=100.0, to_step=100, stepping_seconds=98
        ),
    ),
)


class Scripted(FakeEngine):
    """Says, or raises, one thing after the other when it is asked for its capacity."""

    def __init__(self, *answers: Capacity | Exception) -> None:
        self.answers = list(answers)

    async def capacity(self, job: Job) -> Capacity:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Looking:
    """An autoscaler whose clock goes on by hand."""

    def __init__(self, *answers: Capacity | Exception) -> None:
        self.now, self.wake = 100.0, asyncio.Event()
        self.scaler = Autoscaler(Scripted(*answers), self.wake, lambda: self.now)

    async def look(self, state: RunState, **changes: Any) -> Sequence[ev.ScaleDecided]:
        """One look, from the question to the answer."""
        of = lambda attempt: Job("/run", RUN, attempt, 2)  # noqa: E731
        given: dict[str, Any] = {"progress": TRAINS, "job": THERE, "held": 0.0, "of": of, **changes}
        self.wake.clear()
        found = await self.scaler.look(state, **given)
        if not found and self.scaler._read is not None:
            await self.wake.wait()
            found = await self.scaler.look(state, **given)
        return found


def free(at: float, count: int) -> Capacity:
    return Capacity(at, count, "by nodes")


async def test_it_decides_at_intervals_and_says_each_thing_once() -> None:
    state, looking = (
        story(*LIVE, run=RUN),
        Looking(free(100.0, 0), free(110.0, 0), free(120.0, 3), free(150.0, 3)),
    )
    (first,) = await looking.look(state)
    assert (first.decision.acts, first.decision.workers) == (False, 2)
    state = evolve(state, first)
    assert await looking.look(state) == (), "not before the next interval"
    looking.now = 110.0
    assert await looking.look(state) == (), "nothing new"
    looking.now = 120.0
    assert await looking.look(state) == (), "three more are free, and have not been for long enough"
    looking.now = 160.0
    (grows,) = await looking.look(state)
    assert (grows.decision.acts, grows.decision.workers, grows.decision.rule) == (True, 5, "capacity")
    after = evolve(state, grows)
    assert (after.target, after.scaling.steps) == (5, 1)
    assert looking.scaler._read is None


async def test_an_engine_that_fails_leaves_the_run_as_it_is_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = story(*LIVE, run=RUN)
    looking = Looking(KeyError("allocatable"), KeyError("allocatable"), free(120.0, 1))
    (first,) = await looking.look(state)
    assert not first.decision.acts
    assert "KeyError: 'allocatable'" in first.decision.reason
    looking.now = 110.0
    assert await looking.look(evolve(state, first)) == ()
    assert caplog.text.count("the free capacity is not known") == 1


async def test_room_that_was_seen_before_the_last_change_is_not_room() -> None:
    """A read is shared for a while. After a step it would count the workers of the step as free once more."""
    state = evolve(story(*LIVE, run=RUN), ev.ScaleRequested(90.0, "r", 5, "person"))
    state = evolve(state, ev.Scaled(95.0, 1, 5))
    state = replace(state, scaling=replace(state.scaling, asked_at=None))
    five = replace(TRAINS, stretches=(replace(TRAINS.stretches[0], workers=5),))
    looking = Looking(free(94.0, 3))
    looking.now = 1000.0
    (kept,) = await looking.look(state, progress=five)
    assert (kept.decision.acts, kept.decision.workers) == (False, 5)
    assert "before the last change" in kept.decision.reason


async def test_nothing_is_decided_while_workers_are_waited_for() -> None:
    state = story(*LIVE, run=RUN)
    waits = job(
        WorkerStatus("node-0", WorkerPhase.RUNNING),
        WorkerStatus("node-1", WorkerPhase.PENDING, waiting="waiting for capacity"),  # type: ignore[arg-type]
    )
    assert await Looking(free(100.0, 5)).look(state, job=waits, held=10.0) == ()
    looking = Looking(free(100.0, 5))
    (back,) = await looking.look(state, job=waits, held=61.0)
    assert (back.decision.rule, back.decision.workers) == ("fallback", 1)
    assert evolve(state, back).scaling.failed_sizes == (2,)
