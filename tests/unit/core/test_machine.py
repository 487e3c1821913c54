"""The machine, told in stories: events in, actions out."""

from __future__ import annotations

import pytest

from airflow_elastic.core.machine import create, due, evolve
from airflow_elastic.core.state import Cause, Phase
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Delete, Finish, Pause, Scale, Submit
from airflow_elastic.spec.run import RestartPolicy
from tests.support.builders import LIVE, at_step, created, done, failed, job, lost, rank, spec, story, worker


def test_a_run_begins_by_submitting() -> None:
    state = create(created())
    assert due(state) == (Submit(1, 2),)
    assert due(story(*LIVE)) == ()


def test_only_a_creation_begins_a_run() -> None:
    with pytest.raises(ValueError, match="begins with RunCreated"):
        create(ev.DeadlinePassed(1.0))


def test_success_is_cleaned_up_and_written_down() -> None:
    state = story(*LIVE, ev.WorkersEnded(2.0, 1, done()))
    assert due(state) == (Delete(1, 0.0),)
    state = evolve(state, ev.AttemptGone(3.0, 1))
    assert due(state) == (Finish("succeeded", "training is complete"),)
    state = evolve(state, ev.RunEnded(4.0, "succeeded", "training is complete"))
    assert state.ended
    assert due(state) == ()


def test_scaling_in_place_keeps_the_attempt() -> None:
    state = story(*LIVE, ev.ScaleRequested(2.0, "r", 3, "me"))
    assert due(state) == (Scale(1, 3),)
    state = evolve(state, ev.Scaled(2.1, 1, 3))
    assert (due(state), state.attempt.workers, state.restarts_used) == ((), 3, 0)


@pytest.mark.parametrize("in_place", [True, False])
def test_scaling_by_resubmission_costs_nothing(in_place: bool) -> None:
    state = story(*LIVE, ev.ScaleRequested(2.0, "r", 3, "me"), in_place=in_place)
    if in_place:
        state = evolve(state, ev.ScaleFailed(2.1, 1, 3, "quota"))
    assert due(state) == (Delete(1, 30.0),)
    state = evolve(state, ev.AttemptGone(3.0, 1))
    assert due(state) == (Submit(2, 3),)
    assert (state.restarts_used, state.attempts[0].cause) == (0, Cause.SCALE_STEP)


@pytest.mark.parametrize("workers", [0, 5, -1])
def test_scaling_beyond_the_bounds_changes_nothing(workers: int) -> None:
    state = story(*LIVE)
    assert evolve(state, ev.ScaleRequested(2.0, "r", workers, "me")) == state


def test_a_change_by_an_autoscaler_counts_once() -> None:
    """Snapshots show it until the job bears the run's own number again; by then somebody may have asked for another."""
    seen = ev.ScaleRequested(2.0, "job@2", 3, ev.AUTOSCALER)
    state = story(*LIVE, seen, ev.Scaled(2.1, 1, 3), ev.ScaleRequested(3.0, "r", 4, "me"))
    assert state.target == 4
    assert evolve(state, seen) == state


def test_a_scale_step_during_a_restart_is_what_the_next_attempt_begins_with() -> None:
    state = story(
        *LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.ScaleRequested(2.1, "r", 4, "me"), ev.AttemptGone(2.2, 1)
    )
    assert due(state) == (Submit(2, 4),)


def test_preemption_costs_nothing() -> None:
    taken = job(worker("lost", preempted=True, reason="Preempted"))
    state = story(*LIVE, ev.WorkersEnded(2.0, 1, taken), ev.AttemptGone(3.0, 1))
    assert due(state) == (Submit(2, 2),)
    assert (state.restarts_used, state.attempts[0].cause) == (0, Cause.PREEMPTION)


def test_stop_saves_then_ends() -> None:
    state = story(*LIVE, ev.StopRequested(2.0, "r", "me"))
    assert due(state) == (Delete(1, 30.0),)
    state = evolve(state, ev.AttemptGone(3.0, 1))
    assert due(state) == (Finish("stopped", "stopped by me"),)


def test_a_stop_by_a_former_owner_is_void() -> None:
    state = story(*LIVE, ev.OwnerChanged(2.0, "try-2"), owner="try-1")
    assert evolve(state, ev.StopRequested(3.0, "r", "on_kill", owner="try-1")) == state
    assert evolve(state, ev.StopRequested(3.0, "r", "on_kill", owner="try-2")) != state


def test_training_that_finished_while_being_stopped_has_succeeded() -> None:
    state = story(
        *LIVE, ev.StopRequested(2.0, "r", "me"), ev.AttemptGone(3.0, 1, at_step(100, finished=True))
    )
    assert state.outcome == "succeeded", state.reason


def test_the_deadline_ends_the_run_as_failed() -> None:
    state = story(*LIVE, ev.DeadlinePassed(9.0), ev.AttemptGone(9.5, 1), run=spec(active_deadline_seconds=9))
    assert due(state) == (Finish("failed", "the active deadline of 9 s has passed"),)


def test_a_deadline_during_a_pause_needs_nothing_deleted() -> None:
    state = _paused()
    state = evolve(state, ev.StopRequested(9.0, "r", "me"))
    assert due(state) == (Finish("stopped", "stopped by me"),)


def test_a_second_fruitless_failure_is_waited_out() -> None:
    state = _paused()
    assert due(state) == (Pause(3, 5.0 + 1.0),)
    assert due(evolve(state, ev.BackoffElapsed(6.0, 3))) == (Submit(3, 2),)


def test_scaling_during_a_pause_changes_the_attempt_that_is_planned() -> None:
    state = evolve(_paused(), ev.ScaleRequested(5.5, "r", 3, "me"))
    assert due(evolve(state, ev.BackoffElapsed(6.0, 3))) == (Submit(3, 3),)


def _paused():  # type: ignore[no-untyped-def]
    state = story(
        *LIVE,
        ev.WorkersEnded(2.0, 1, lost()),
        ev.AttemptGone(2.5, 1),
        ev.AttemptSubmitted(3.0, 2, "job-a2"),
        ev.WorkersEnded(4.0, 2, lost()),
        ev.AttemptGone(5.0, 2),
    )
    assert state.attempt.phase is Phase.PAUSED
    return state


def test_refusal_by_the_engine_ends_the_run() -> None:
    state = story(ev.SubmitRefusedByEngine(1.0, 1, "no such image"))
    assert due(state) == (Delete(1, 0.0),)
    assert due(evolve(state, ev.AttemptGone(2.0, 1))) == (Finish("failed", "no such image"),)


def test_silence_ends_the_attempt() -> None:
    state = story(*LIVE, ev.Stalled(700.0, 1, 600.0, 57), ev.AttemptGone(701.0, 1))
    assert state.attempts[0].failure is not None
    assert state.attempts[0].failure.reason == "no progress for 600 s since step 57"
    assert due(state) == (Submit(2, 2),)


def test_a_failed_run_reopened_has_a_fresh_budget_and_goes_on() -> None:
    run = spec(restart=RestartPolicy(policy="Never"))
    state = story(
        *LIVE,
        ev.CheckpointCommitted(1.5, 1, 10, "k"),
        ev.WorkersEnded(2.0, 1, failed()),
        ev.AttemptGone(3.0, 1),
        ev.RunEnded(4.0, "failed", "why"),
        ev.RunReopened(5.0, "try-2"),
        run=run,
    )
    assert due(state) == (Submit(2, 2),)
    assert (state.restarts_used, state.owner, state.outcome, state.lives) == (
        0,
        "try-2",
        None,
        state.attempts[1:],
    )
    state = evolve(state, ev.AttemptSubmitted(6.0, 2, "job-a2"))
    assert state.attempt.from_step == 10


def test_a_run_that_succeeded_is_not_reopened() -> None:
    state = story(
        *LIVE,
        ev.WorkersEnded(2.0, 1, done()),
        ev.AttemptGone(3.0, 1),
        ev.RunEnded(4.0, "succeeded", "complete"),
    )
    assert evolve(state, ev.RunReopened(5.0)) == state


@pytest.mark.parametrize(
    "late",
    [
        ev.AttemptSubmitted(9.0, 1, "job-a1"),
        ev.WorkersEnded(9.0, 1, failed()),
        ev.AttemptGone(9.0, 1),
        ev.Stalled(9.0, 1, 600.0),
        ev.Scaled(9.0, 1, 4),
        ev.ScaleFailed(9.0, 1, 4, "late"),
        ev.BackoffElapsed(9.0, 1),
    ],
)
def test_news_of_a_former_attempt_changes_nothing(late: ev.Event) -> None:
    state = story(
        *LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1), ev.AttemptSubmitted(4.0, 2, "job-a2")
    )
    assert evolve(state, late) == state


@pytest.mark.parametrize(
    "event", [ev.DeadlinePassed(9.0), ev.StopRequested(9.0, "r", "me"), ev.WorkersEnded(9.0, 1, lost())]
)
def test_nothing_happens_after_the_last_word(event: ev.Event) -> None:
    state = story(
        *LIVE,
        ev.WorkersEnded(2.0, 1, done()),
        ev.AttemptGone(3.0, 1),
        ev.RunEnded(4.0, "succeeded", "complete"),
        run=spec(active_deadline_seconds=5),
    )
    assert evolve(state, event) == state


def test_the_budget_is_shared_by_all_workers_and_kinds() -> None:
    state = story()
    kinds = [lost(), job(worker(errors=(rank(None, signal=9),))), lost(), lost()]
    for number, ending in enumerate(kinds, start=1):
        for event in (
            ev.AttemptSubmitted(number, number, f"job-a{number}"),
            ev.WorkersEnded(number, number, ending, at_step(number * 10, attempt=number)),
            ev.AttemptGone(number, number),
        ):
            state = evolve(state, event)
    assert state.outcome == "failed"
    assert "all 3 restarts of the budget are used" in (state.reason or "")
    assert len(state.attempts) == 4
