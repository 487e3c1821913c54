"""When a run asks for standby workers."""

from __future__ import annotations

import pytest

from airflow_elastic.core.health.standby import (
    LONGEST_PAUSE_SECONDS,
    lacks_standby,
    lost_standby,
    pause,
    why_lost,
)
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from tests.support.builders import spec


def state(*events: ev.Event, standby: int = 1) -> RunState:
    run = spec(workers=Workers(2, min=1, max=4, standby=standby))
    found = create(ev.RunCreated(0.0, run, scales_in_place=True))
    for event in (ev.AttemptSubmitted(1.0, 1, "job"), *events):
        found = evolve(found, event)
    return found


def job(*phases: str, standby: tuple[str, ...] = ()) -> JobStatus:
    workers = [WorkerStatus(f"node-{i}", WorkerPhase(phase)) for i, phase in enumerate(phases)]
    more = [
        WorkerStatus(f"node-{i}", WorkerPhase(phase), reason="it was evicted")
        for i, phase in enumerate(standby, len(phases))
    ]
    return JobStatus(tuple(workers), standby_workers=tuple(more))


TRAINS = job("running", "running")


def test_they_are_asked_for_once_all_workers_train() -> None:
    assert lacks_standby(state(), TRAINS)
    assert not lacks_standby(state(), job("running", "pending")), "they would take its room"
    assert not lacks_standby(state(), job("running", "failed"))
    assert not lacks_standby(state(standby=0), TRAINS)


def test_those_that_are_to_come_count() -> None:
    assert not lacks_standby(state(), job("running", "running", standby=("pending",)))
    assert lacks_standby(state(standby=2), job("running", "running", standby=("running",)))
    assert lacks_standby(state(), job("running", "running", standby=("lost",)))


@pytest.mark.parametrize(
    "event",
    [
        ev.ScaleRequested(2.0, "request", 3, "test"),
        ev.Regrouped(2.0, 1, (0,)),
        ev.StopRequested(2.0, "request", "test"),
    ],
)
def test_not_while_workers_are_missing_or_the_attempt_ends(event: ev.Event) -> None:
    assert not lacks_standby(state(event), TRAINS)


def test_those_that_were_asked_for_are_part_of_the_state_once() -> None:
    asked = ev.StandbyAsked(2.0, 1, (2,))
    once = state(asked)
    assert once.attempt.standby == (2,)
    assert evolve(once, asked) == once, "it says nothing new, and is not journaled again"


def test_a_lost_one_is_known_with_its_reason() -> None:
    seen = job("running", "running", standby=("lost", "running"))
    (lost,) = lost_standby(seen)
    assert why_lost((lost,)) == "node-2 was lost: it was evicted"
    assert why_lost(()) is None


def test_pauses_double_and_are_bounded() -> None:
    pauses = [pause(losses) for losses in range(12)]
    assert pauses[:5] == [0.0, 0.0, 10.0, 20.0, 40.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
