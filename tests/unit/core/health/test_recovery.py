"""What took how long from the last step of an attempt to the first step of the next one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.event_sentences import sentence
from airflow_elastic.core.health.recovery import measured_from, recovered, words
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.codec import encode
from airflow_elastic.spec.status import JobStatus, Progress, Stretch, WorkerPhase, WorkerStatus
from airflow_elastic.spec.training.recovery import Recovery
from tests.support.builders import spec

BEFORE = Progress(
    at=9.0,
    attempt=1,
    step=40,
    stretches=(Stretch(1, 2, 2, 2.0, first_step_at=3.0, last_step_at=9.0, to_step=40),),
)
LOST = JobStatus((WorkerStatus("node-0", WorkerPhase.LOST, reason="its pod was deleted"),))


def story(*, ended: float = 10.0, submitted: float = 12.0, told: Progress | None = BEFORE) -> RunState:
    state = create(ev.RunCreated(0.0, spec(), scales_in_place=True))
    for event in (
        ev.AttemptSubmitted(1.0, 1, "job"),
        ev.WorkersEnded(ended, 1, LOST, told),
        ev.AttemptGone(ended + 1.0, 1),
        ev.AttemptSubmitted(submitted, 2, "job-2"),
    ):
        state = evolve(state, event)
    return state


def report(*, started: float = 15.0, first: float | None = 21.0, restoring: float = 2.0) -> Progress:
    stretch = Stretch(1, 2, 2, started, first_step_at=first, from_step=35, restoring_seconds=restoring)
    return Progress(at=22.0, attempt=2, step=36, stretches=(stretch,))


def test_each_part_is_told_and_they_fill_the_time() -> None:
    (event,) = recovered(story(), report(), 22.0)
    assert event.recovery == Recovery(noticing=1.0, deciding=2.0, meeting=3.0, restoring=2.0, starting=4.0)
    assert event.recovery.seconds == 21.0 - 9.0
    assert words(event.recovery, "the last step") == (
        "12 s after the last step: noticed after 1 s, decided in 2 s, met in 3 s, restored in 2 s, started in 4 s"
    )


def test_what_the_time_is_measured_from_is_told() -> None:
    state = story()
    (event,) = recovered(state, report(), 22.0)
    assert "attempt 2 trains, 12 s after the last step: noticed after 1 s" in str(
        sentence(event, state, evolve(state, event))
    )
    unstarted = story(told=None)
    (event,) = recovered(unstarted, report(), 22.0)
    assert sentence(event, unstarted, evolve(unstarted, event)) == (
        "attempt 2 trains, 11 s after attempt 1 ended: decided in 2 s, met in 3 s, restored in 2 s, started in 4 s"
    )
    young = replace(BEFORE, stretches=(Stretch(1, 2, 2, 2.0),))
    assert measured_from(story(told=young).attempts[0]) == "attempt 1 ended"


def test_how_many_ranks_stayed_is_told() -> None:
    state, told = story(), report()
    one, several = "1 of 2 ranks stayed in its process", "2 of 4 ranks stayed in their processes"
    for ranks, stayed, words_of in ((2, 1, one), (4, 2, several)):
        first = replace(told.stretches[0], world_size=ranks, stayed=stayed)
        (event,) = recovered(state, replace(told, stretches=(first,)), 22.0)
        assert (event.stayed, event.ranks) == (stayed, ranks)
        assert str(sentence(event, state, evolve(state, event))).endswith(f"started in 4 s; {words_of}")
    (event,) = recovered(state, told, 22.0)
    assert not {"stayed", "ranks"} & encode(event).keys(), "as older releases have it"


def test_it_is_an_event_once() -> None:
    state = story()
    (event,) = recovered(state, report(), 22.0)
    after = evolve(state, event)
    assert after.attempt.recovery == event.recovery
    assert recovered(after, report(), 23.0) == ()
    assert evolve(after, replace(event, at=24.0)) == after


@pytest.mark.parametrize(
    "progress", [None, report(first=None), replace(report(), attempt=1), replace(report(), stretches=())]
)
def test_not_before_the_first_step(progress: Progress | None) -> None:
    assert recovered(story(), progress, 22.0) == ()


def test_a_first_attempt_has_nothing_to_recover_from() -> None:
    state = create(ev.RunCreated(0.0, spec(), scales_in_place=True))
    state = evolve(state, ev.AttemptSubmitted(1.0, 1, "job"))
    assert recovered(state, replace(report(), attempt=1), 22.0) == ()


@given(*[st.floats(0.0, 50.0)] * 5)
def test_clocks_that_differ_make_no_part_negative(
    ended: float, submitted: float, started: float, first: float, restoring: float
) -> None:
    state = story(ended=ended, submitted=submitted)
    (event,) = recovered(state, report(started=started, first=first, restoring=restoring), 60.0)
    assert min(event.recovery.parts().values()) >= 0.0
    assert event.recovery.seconds == pytest.approx(max(9.0, ended, submitted, started, first) - 9.0)
