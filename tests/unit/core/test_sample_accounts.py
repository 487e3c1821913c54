"""Time and silence: every second is in one row, and only those who can speak are judged by their silence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.cli.drive.progress_lines import progress_line
from airflow_elastic.core.goodput import ROWS, goodput
from airflow_elastic.core.health.deadlines import overdue
from airflow_elastic.core.health.start_times import StartLimit, start_limit
from airflow_elastic.core.machine import evolve
from airflow_elastic.core.state import RunState
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import Health, ScaleStep
from airflow_elastic.spec.status import Progress, Stretch, Wait, Waiting
from tests.support.builders import at_step, done, failed, lost, spec, story

SUBMITTED = ev.AttemptSubmitted(1.0, 1, "a1")


def stretch(
    start: float, first: float | None, last: float | None, low: int, high: int, **more: float
) -> Stretch:
    busy = 0.0 if first is None or last is None else last - first
    return Stretch(1, 2, 2, start, first, last, low, high, stepping_seconds=busy, **more)


def test_repeated_steps_are_not_goodput() -> None:
    first = Progress(1, 20.0, step=100, stretches=(stretch(2.0, 4.0, 14.0, 0, 100),))
    second = Progress(2, 40.0, step=200, stretches=(stretch(16.0, 20.0, 32.0, 80, 200),))
    state = story(
        SUBMITTED,
        ev.CheckpointCommitted(12.0, 1, 80, "k"),
        ev.WorkersEnded(14.5, 1, lost(), first),
        ev.AttemptGone(15.0, 1),
        ev.AttemptSubmitted(15.5, 2, "a2"),
        ev.WorkersEnded(32.5, 2, done(), second),
        ev.AttemptGone(33.0, 2),
        ev.RunEnded(34.0, "succeeded", "complete"),
    )
    spent = goodput(state, None, 99.0)
    assert spent["wall"] == 34.0
    assert spent["training"] == pytest.approx(10 * 0.8 + 12)
    assert spent["repeated"] == pytest.approx(10 * 0.2)
    assert spent["starting"] == pytest.approx(4.0 + 5.0)
    assert spent["ending"] == pytest.approx(1.0 + 1.0)
    assert sum(spent[row] for row in ROWS) == pytest.approx(34.0)


def test_the_time_a_run_lay_stopped_is_nobodys() -> None:
    first = Progress(1, 14.0, step=100, stretches=(stretch(2.0, 4.0, 14.0, 0, 100),))
    second = Progress(2, 1030.0, step=200, stretches=(stretch(1006.0, 1010.0, 1030.0, 100, 200),))
    state = story(
        SUBMITTED,
        ev.StopRequested(14.0, "r", "ada"),
        ev.CheckpointCommitted(14.5, 1, 100, "k"),
        ev.AttemptGone(15.0, 1, first),
        ev.RunEnded(16.0, "stopped", "ada"),
        ev.RunReopened(1005.0, "ada"),
        ev.AttemptSubmitted(1006.0, 2, "a2"),
        ev.WorkersEnded(1031.0, 2, done(), second),
        ev.AttemptGone(1032.0, 2),
        ev.RunEnded(1033.0, "succeeded", "complete"),
    )
    spent = goodput(state, None, 9999.0)
    assert spent["wall"] == pytest.approx(16.0 + 28.0)
    assert spent["training"] == pytest.approx(10.0 + 20.0)
    assert spent["starting"] == pytest.approx(4.0 + 5.0)
    assert spent["other"] == pytest.approx(1.0 + 1.0)  # from an attempt's being gone to the last word
    assert document("/r", state, None, 9999.0)["goodput"] == pytest.approx(30 / 44)


def test_an_attempt_that_never_made_a_step_costs_time_and_loses_nothing() -> None:
    state = story(SUBMITTED, ev.WorkersEnded(6.0, 1, lost()), ev.AttemptGone(7.0, 1))
    spent = goodput(state, None, 9.0)
    assert (spent["training"], spent["repeated"]) == (0.0, 0.0)
    assert spent["starting"] == pytest.approx(7.0 + 2.0)


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.1, 50), st.integers(0, 100)), min_size=1, max_size=5),
    st.floats(0, 100),
    st.lists(st.none() | st.floats(0, 1e5), min_size=5, max_size=5),
)
def test_every_second_is_in_exactly_one_row(
    lives: list[tuple[float, float, int]], after: float, rests: list[float | None]
) -> None:
    """Whether an attempt is followed by the next one, or by the run's end and, `rests` later, its reopening."""
    now, events, step, rested = 1.0, [], 0, 0.0
    for number, (starting, busy, done_steps) in enumerate(lives, start=1):
        progress = Progress(
            number,
            now,
            step=step + done_steps,
            stretches=(stretch(now, now + starting, now + starting + busy, step, step + done_steps),),
        )
        end = now + starting + busy
        events += [
            ev.AttemptSubmitted(now, number, "a"),
            ev.WorkersEnded(end, number, lost(), progress),
            ev.AttemptGone(end, number),
        ]
        now, step = end, step + done_steps // 2
        if (rest := rests[number - 1]) is not None and number < len(lives):
            events.insert(-2, ev.StopRequested(end, f"r{number}", "ada"))
            events += [ev.RunEnded(end, "stopped", "ada"), ev.RunReopened(end + rest)]
            now, rested = end + rest, rested + rest
    spent = goodput(story(*events), None, now + after)
    assert spent["wall"] == pytest.approx(now + after - rested, rel=1e-6)
    assert sum(spent[row] for row in ROWS) == pytest.approx(spent["wall"], rel=1e-6)
    assert all(value >= 0 for value in spent.values())


def test_the_document_of_a_run_just_created_divides_by_nothing() -> None:
    plain = document("uri", story(), None, 0.0)
    assert (plain["goodput"], plain["state"], plain["step"], plain["attempts"][0]["failure"]) == (
        0.0,
        "submitting",
        0,
        None,
    )


def test_the_document_says_what_workers_wait_for() -> None:
    wait, none = Wait(Waiting.CAPACITY, 1, 2, "no room"), None
    told = {"state": "waiting for capacity", "workers": 1, "of": 2, "reason": "no room"}
    live = story(SUBMITTED)
    ending = story(SUBMITTED, ev.StopRequested(2.0, "r", "ada"))
    unstarted, former = Progress(1, 2.0), replace(at_step(7), attempt=0)
    for state, progress, seen, word, block in (
        (live, None, wait, "waiting for capacity", told),
        (live, unstarted, wait, "waiting for capacity", told),  # some agents are there, no rank is
        (live, former, wait, "waiting for capacity", told),  # a report of another attempt
        (live, at_step(7), wait, "running", told),  # it trains while further workers come
        (live, None, none, "running", None),
        (ending, None, wait, "ending", None),
        (story(), None, wait, "submitting", None),
    ):
        plain = document("uri", state, progress, 9.0, seen)
        assert (plain["state"], plain["waiting"]) == (word, block)
        assert state.label != "waiting for capacity"


def test_silence_after_a_step_counts_from_that_step() -> None:
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=60)))
    progress = at_step(7, moved_at=100.0)
    assert list(overdue(state, progress, 159.0)) == []
    (event,) = overdue(state, progress, 160.0)
    assert (event.step, event.idle_seconds) == (7, 60.0)  # type: ignore[union-attr]


def test_until_the_first_step_there_is_more_patience() -> None:
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=60, start_seconds=600)))
    fresh = Progress(1, 2.0, stretches=(Stretch(1, 2, 2, started_at=50.0),), attached=True)
    assert list(overdue(state, fresh, 649.0)) == []
    (event,) = overdue(state, fresh, 650.0)
    assert event.step is None  # type: ignore[union-attr]


def restarted(*starts: tuple[float, int], life: tuple[ev.Event, ...] = ()) -> RunState:
    """Attempts that took so many seconds to start so many ranks, and failed; and one that begins."""
    events: list[ev.Event] = []
    for number, (seconds, ranks) in enumerate(starts, 1):
        stretch = Stretch(1, ranks, ranks, started_at=10.0, first_step_at=10.0 + seconds, to_step=5 * number)
        told = Progress(number, 20.0, step=5 * number, stretches=(stretch,), attached=True)
        events += [
            ev.AttemptSubmitted(2.0, number, "job"),
            ev.WorkersEnded(21.0, number, failed(error=f"ValueError: {number}"), told),
            ev.AttemptGone(22.0, number, told),
        ]
    last = len(starts) + (2 if life else 1)
    health = Health(no_progress_seconds=20, start_seconds=1800)
    return story(*events, *life, ev.AttemptSubmitted(23.0, last, "job"), run=spec(health=health))


@pytest.mark.parametrize(
    ("state", "limit", "reason"),
    [
        (restarted(), 1800.0, "no first step within 1800 s"),
        (restarted((14.0, 2)), 62.0, "no first step within 62 s; earlier starts took up to 14 s"),
        (restarted((14.0, 2), (4.0, 2)), 62.0, "no first step within 62 s; earlier starts took up to 14 s"),
        # For another number of ranks code may be compiled anew.
        (restarted((14.0, 4)), 160.0, "no first step within 160 s; earlier starts took up to 14 s"),
        (restarted((30.0, 4), (5.0, 2)), 35.0, "no first step within 35 s; earlier starts took up to 5 s"),
        (restarted((700.0, 2)), 1800.0, "no first step within 1800 s; earlier starts took up to 700 s"),
    ],
)
def test_a_run_that_has_started_before_knows_how_long_that_takes(
    state: RunState, limit: float, reason: str
) -> None:
    begins = Stretch(1, 2, 2, started_at=50.0)
    fresh = Progress(state.attempt.number, 51.0, stretches=(begins,), attached=True)
    assert list(overdue(state, fresh, 49.9 + limit)) == []
    assert list(overdue(state, fresh, 50.0 + limit, waited_at=51.0)) == [], "waiting for pods does not count"
    (event,) = overdue(state, fresh, 50.0 + limit)
    failure = evolve(state, event).attempt.failure
    assert failure is not None
    assert failure.reason == reason
    # A restore from slow storage: what counts is that it goes on.
    reading = replace(fresh, moved_at=40_000.0)
    assert list(overdue(state, reading, 39_999.0 + limit)) == []
    starting = document("uri", state, fresh, 60.0)["starting"]
    assert (starting["since"], starting["limit_seconds"]) == (50.0, limit)


def test_a_start_within_an_attempt_counts_as_well_and_one_before_a_reopening_does_not() -> None:
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=20, start_seconds=1800)))
    first = Stretch(1, 2, 2, started_at=3.0, first_step_at=13.0)
    fresh = Progress(1, 51.0, stretches=(first, Stretch(2, 2, 2, started_at=50.0)), attached=True)
    assert list(overdue(state, fresh, 99.0)) == []
    assert len(list(overdue(state, fresh, 100.0))) == 1
    life = (
        ev.StopRequested(22.5, "r", "ada"),
        ev.AttemptGone(22.55, 2),
        ev.RunEnded(22.6, "stopped", "x"),
        ev.RunReopened(22.7),
    )
    state = restarted((14.0, 2), life=life)
    mended = Progress(
        state.attempt.number, 51.0, stretches=(Stretch(1, 2, 2, started_at=50.0),), attached=True
    )
    assert start_limit(state, mended) == StartLimit(1800.0)


def test_while_a_checkpoint_is_read_nobody_stands_still() -> None:
    """A large one may take longer than a start: what counts is that it goes on."""
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=60, start_seconds=600)))
    reading = Stretch(1, 2, 2, started_at=50.0, restored_bytes=3_200_000_000, to_restore_bytes=10_400_000_000)
    progress = Progress(1, 5000.0, moved_at=5000.0, stretches=(reading,), attached=True)
    assert list(overdue(state, progress, 5599.0)) == []
    (event,) = overdue(state, progress, 5600.0)
    assert event.idle_seconds == 600.0  # type: ignore[union-attr]
    read = "3.2 GB of 10.4 GB of the checkpoint read"
    assert read in progress_line(state, progress)
    assert document("uri", state, progress, 5000.0)["restoring"] == {
        "bytes": 3_200_000_000,
        "of_bytes": 10_400_000_000,
    }
    done = replace(progress, stretches=(replace(reading, restored_bytes=10_400_000_000),))
    assert read not in progress_line(state, done)
    assert document("uri", state, done, 5000.0)["restoring"] is None


def test_no_time_runs_before_ranks_have_started() -> None:
    """A queue may take a day: `start_seconds` begins with the ranks, not with the submission."""
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=60, start_seconds=600)))
    for nobody in (None, Progress(1, 2.0), Progress(1, 2.0, attached=True)):
        assert list(overdue(state, nobody, 1e9)) == []
    late = Progress(1, 2.0, stretches=(Stretch(1, 2, 2, started_at=86_400.0),), attached=True)
    assert list(overdue(state, late, 86_999.0)) == []
    (event,) = overdue(state, late, 87_000.0)
    assert event.idle_seconds == 600.0  # type: ignore[union-attr]


def test_ranks_that_stand_still_for_a_worker_that_waits_are_not_silent() -> None:
    state = story(SUBMITTED, run=spec(health=Health(no_progress_seconds=60)))
    progress = at_step(7, moved_at=100.0)
    assert list(overdue(state, progress, 5000.0, waited_at=5000.0)) == []
    assert list(overdue(state, progress, 5059.0, waited_at=5000.0)) == []
    (event,) = overdue(state, progress, 5060.0, waited_at=5000.0)
    assert event.idle_seconds == 60.0  # type: ignore[union-attr]


def test_the_deadline_counts_while_workers_wait() -> None:
    state = story(SUBMITTED, run=spec(active_deadline_seconds=50))
    assert list(overdue(state, None, 50.0, waited_at=50.0)) == [ev.DeadlinePassed(50.0)]


def test_a_script_that_does_not_speak_is_not_judged_by_its_silence() -> None:
    state = story(SUBMITTED)
    assert list(overdue(state, None, 1e9)) == []
    assert list(overdue(state, at_step(7, attached=False), 1e9)) == []


def test_the_deadline_comes_first_and_once() -> None:
    state = story(SUBMITTED, run=spec(active_deadline_seconds=50))
    assert list(overdue(state, at_step(7), 50.0)) == [ev.DeadlinePassed(50.0)]
    state = story(SUBMITTED, ev.DeadlinePassed(50.0), run=spec(active_deadline_seconds=50))
    assert list(overdue(state, at_step(7), 51.0)) == []


def test_planned_scale_steps_are_asked_for_once() -> None:
    run = spec(scaling=(ScaleStep(3, at_step=10), ScaleStep(4, after_seconds=30)))
    state = story(SUBMITTED, run=run)
    assert list(overdue(state, at_step(9), 20.0)) == []
    (event,) = overdue(state, at_step(10), 20.0)
    assert event == ev.ScaleRequested(20.0, "scaling.0", 3, "schedule")
    state = story(SUBMITTED, event, run=run)
    assert list(overdue(state, at_step(12), 21.0)) == []
    (late,) = overdue(state, at_step(12), 30.0)
    assert late == ev.ScaleRequested(30.0, "scaling.1", 4, "schedule")
