"""The machine, told in stories: events in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_elastic.core.machine import create, due, evolve
from airflow_elastic.core.state import Cause, FailureKind, Phase, Trouble, Unpruned
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Delete, Finish, OrderSave, Pause, Rejoin, Scale, Submit
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RestartPolicy, Workers
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus
from tests.support.builders import at_step, created, done, failed, job, lost, rank, spec, story, worker

PEER_GONE = "RuntimeError: [/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3344"
LIVE = (ev.AttemptSubmitted(1.0, 1, "job-a1"),)


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


def test_workers_that_keep_each_others_states_have_time_to_write_them_after_a_failure() -> None:
    run = spec(checkpoint=CheckpointPolicy(buddies=True))
    for ended, grace in ((done(), 0.0), (lost(), 30.0)):
        state = story(*LIVE, ev.WorkersEnded(3.0, 1, ended), run=run)
        assert due(state) == (Delete(1, grace),)


def test_after_a_failure_agents_write_what_they_hold_where_all_of_them_are_there() -> None:
    rank = JobStatus(
        (WorkerStatus("node-0", WorkerPhase.FAILED), WorkerStatus("node-1", WorkerPhase.RUNNING))
    )
    peers = (RankError(exit_code=1, error="DistNetworkError: Connection reset by peer"),)
    network = JobStatus(
        tuple(WorkerStatus(name, WorkerPhase.FAILED, errors=peers) for name in ("node-0", "node-1"))
    )
    silent = JobStatus((network.workers[0], WorkerStatus("node-1", WorkerPhase.RUNNING)))
    for event, grace in (
        (ev.WorkersEnded(3.0, 1, rank), 30.0),
        (ev.WorkersEnded(3.0, 1, network), 30.0),
        (ev.WorkersEnded(3.0, 1, silent), 0.0),
        (ev.Stalled(3.0, 1, 600.0), 30.0),
        (ev.WorkersEnded(3.0, 1, lost()), 0.0),
    ):
        assert due(story(*LIVE, event)) == (Delete(1, grace),)


def test_an_attempt_whose_report_was_lost_has_come_as_far_as_its_checkpoints() -> None:
    state = story(*LIVE, ev.CheckpointCommitted(2.0, 1, 340, "k"), ev.WorkersEnded(3.0, 1, lost()))
    assert (state.attempt.last_step, state.attempt.advanced) == (340, True)
    old = evolve(state, ev.AttemptGone(3.1, 1))
    late = evolve(old, ev.CheckpointCommitted(3.2, 1, 345, "k"))
    assert (late.attempt.number, late.attempt.advanced) == (2, False), "the one before has written it"


def test_a_lost_worker_is_followed_by_a_new_attempt_only_when_nothing_is_left() -> None:
    state = story(
        *LIVE, ev.CheckpointCommitted(2.0, 1, 340, "k"), ev.WorkersEnded(3.0, 1, lost(), at_step(357))
    )
    assert due(state) == (Delete(1, 0.0),)
    state = evolve(state, ev.AttemptGone(3.1, 1))
    assert due(state) == (Submit(2, 2),)
    state = evolve(state, ev.AttemptSubmitted(3.2, 2, "job-a2"))
    assert (state.attempt.from_step, state.restarts_used) == (340, 1)
    assert state.attempts[0].failure is not None
    assert state.attempts[0].failure.kind is FailureKind.WORKER_LOST


SOME = Workers(2, min=1)
KILLED = worker("failed", errors=(rank(None, signal=9),), standby=True)
RECOVERABLE = job(worker("running", name="node-0", node="m0"), replace(KILLED, node="m1"))
TOLD = (*LIVE, ev.CheckpointCommitted(2.0, 1, 340, "k"), ev.RanksFailed(3.0, 1, KILLED, 357))
IN_PLACE = (*TOLD, ev.WorkersEnded(3.1, 1, RECOVERABLE, at_step(355)), ev.AttemptSubmitted(3.2, 2, "job-a1"))


def test_where_all_agents_are_there_the_next_attempt_begins_in_the_same_job() -> None:
    told = story(*TOLD)
    assert (due(told), told.attempt.failed) == ((), (KILLED,))
    assert evolve(told, ev.RanksFailed(3.0, 1, KILLED, 357)) == told
    state = story(*IN_PLACE[:-1])
    assert due(state) == (Rejoin(2),)
    before, after = state.attempts
    assert (before.phase, before.cause, before.last_step) == (Phase.GONE, Cause.FAILURE, 357)
    assert (after.home, after.workers, state.restarts_used) == (1, 2, 1)
    state = evolve(state, IN_PLACE[-1])
    assert (due(state), state.attempt.phase, state.attempt.from_step) == ((), Phase.LIVE, 340)


@pytest.mark.parametrize(("third", "in_place"), [("pending", True), ("lost", False)])
def test_workers_that_are_not_there_yet_do_not_keep_others_from_going_on_in_place(
    third: str, in_place: bool
) -> None:
    ended = job(*RECOVERABLE.workers, worker(third, name="node-2"))
    some = ev.Regrouped(1.5, 1, (0, 1))
    run = spec(workers=Workers(3, min=1))
    state = story(LIVE[0], some, *TOLD[1:], ev.WorkersEnded(3.1, 1, ended, at_step(355)), run=run)
    (action,) = due(state)
    assert isinstance(action, Rejoin if in_place else Delete)
    assert state.attempt.members == (0, 1)


def test_a_job_that_was_rejoined_is_ended_like_any_other() -> None:
    state = story(*IN_PLACE, ev.WorkersEnded(4.0, 2, lost(), at_step(360, attempt=2)))
    assert due(state) == (Delete(2, 0.0),)
    state = evolve(state, ev.AttemptGone(4.1, 2))
    assert due(state) == (Submit(3, 2),)
    assert state.attempt.home is None


@pytest.mark.parametrize(
    "events",
    [
        (ev.WorkersEnded(3.1, 1, job(worker("lost", name="node-0"), KILLED)),),
        (ev.WorkersEnded(3.1, 1, job(worker("pending", name="node-0"), KILLED)),),
        (ev.WorkersEnded(3.1, 1, job(worker("failed", name="node-0", errors=(rank(1),)), KILLED)),),
        (ev.WorkersEnded(3.1, 1, job(replace(KILLED, errors=(rank(1, error=PEER_GONE),)))),),
        (ev.StopRequested(3.05, "r", "me"), ev.WorkersEnded(3.1, 1, RECOVERABLE)),
    ],
    ids=["one was lost", "one has not started", "one has ended", "peers may be lost", "the run is to end"],
)
def test_else_it_is_removed_first(events: tuple[ev.Event, ...]) -> None:
    (action,) = due(story(*TOLD, *events))
    assert isinstance(action, Delete)


GONE = worker("lost", name="node-1", node="m1", replaceable=True)
WITHOUT = job(worker("running", name="node-0", node="m0"), GONE)


def test_where_another_worker_can_take_the_place_of_a_lost_one_the_others_stay() -> None:
    state = story(*LIVE, ev.WorkersEnded(3.0, 1, WITHOUT, at_step(357)))
    assert due(state) == (Rejoin(2, (1,)),)
    before, after = state.attempts
    assert (before.phase, after.home, after.workers, state.restarts_used) == (Phase.GONE, 1, 2, 1)
    assert before.failure is not None
    assert before.failure.kind is FailureKind.WORKER_LOST
    state = evolve(state, ev.AttemptSubmitted(3.2, 2, "job-a1"))
    # What was lost before is not lost again.
    left = job(
        worker("left", name="node-1"), worker("running", name="node-0"), replace(KILLED, name="node-2")
    )
    again = evolve(state, ev.WorkersEnded(4.0, 2, left, at_step(360, attempt=2)))
    assert due(again) == (Rejoin(3),)


@pytest.mark.parametrize(
    "event",
    [
        ev.WorkersEnded(3.1, 1, job(GONE)),
        ev.WorkersEnded(3.1, 1, job(GONE, replace(GONE, name="node-0"))),
        ev.WorkersEnded(3.1, 1, job(worker("lost", name="node-0"), GONE)),
        ev.WorkersEnded(3.1, 1, job(worker("pending", name="node-0"), GONE)),
        ev.WorkersEnded(3.1, 1, job(worker("failed", name="node-0", errors=(rank(1),)), GONE)),
    ],
    ids=["nobody is left", "all are lost", "one cannot be replaced", "one has not started", "one has ended"],
)
def test_else_all_get_a_new_job(event: ev.Event) -> None:
    (action,) = due(story(*LIVE, event))
    assert isinstance(action, Delete)


def test_a_worker_is_not_replaced_where_others_are_held_up_or_it_did_not_help() -> None:
    (action,) = due(
        story(*LIVE, ev.Regrouped(1.5, 1, (0,)), ev.WorkersEnded(3.0, 1, WITHOUT), run=spec(workers=SOME))
    )
    assert isinstance(action, Delete)
    fruitless = ev.WorkersEnded(4.0, 2, WITHOUT, at_step(340, attempt=2))
    assert due(story(*IN_PLACE, fruitless)) == (Delete(2, 0.0),)


def test_where_the_engine_will_not_do_it_a_new_job_follows_at_no_further_cost() -> None:
    first = ev.WorkersEnded(3.0, 1, WITHOUT, at_step(357))
    refused = ev.RejoinRefused(3.1, 2, "the size may not change")
    state = story(*LIVE, first, refused)
    assert due(state) == (Delete(2, 0.0),)
    state = evolve(state, ev.AttemptGone(3.2, 2))
    assert (due(state), state.attempt.home, state.restarts_used) == ((Submit(3, 2),), None, 1)
    assert state.suspect == "m1", "the machine of the lost one"
    submitted = story(*LIVE, first, ev.AttemptSubmitted(3.1, 2, "job-a1"))
    assert evolve(submitted, refused) == submitted
    assert evolve(story(), replace(refused, attempt=1)) == story()


def test_who_is_lost_together_costs_one_restart() -> None:
    first = ev.WorkersEnded(3.0, 1, WITHOUT, at_step(357))
    begun = ev.AttemptSubmitted(3.1, 2, "job-a1")
    also = ev.WorkersEnded(3.5, 2, lost())
    gone = ev.AttemptGone(3.6, 2)
    state = story(*LIVE, first, begun, also, gone)
    assert (due(state), state.restarts_used) == ((Submit(3, 2),), 1)
    # A new job that loses one is another matter; and so is one that has got somewhere.
    again = evolve(state, ev.AttemptSubmitted(4.0, 3, "job-a3"))
    again = evolve(evolve(again, ev.WorkersEnded(5.0, 3, lost())), ev.AttemptGone(5.1, 3))
    assert again.restarts_used == 2
    later = replace(also, progress=at_step(358, attempt=2))
    assert story(*LIVE, first, begun, later, gone).restarts_used == 2


def test_in_place_twice_only_where_that_has_helped() -> None:
    fruitless = ev.WorkersEnded(4.0, 2, RECOVERABLE, at_step(340, attempt=2))
    assert due(story(*IN_PLACE, fruitless)) == (Delete(2, 30.0),)
    useful = ev.WorkersEnded(4.0, 2, RECOVERABLE, at_step(341, attempt=2))
    state = story(*IN_PLACE, replace(useful, job=job(worker("running", name="node-0"), KILLED)))
    assert (due(state), state.attempt.home) == ((Rejoin(3),), 1)


def test_a_machine_that_failed_twice_is_left() -> None:
    again = ev.WorkersEnded(4.0, 2, RECOVERABLE, at_step(350, attempt=2))
    state = story(*IN_PLACE, again)
    assert due(state) == (Delete(2, 30.0),)
    assert evolve(state, ev.AttemptGone(4.1, 2)).avoid == ("m1",)


def test_scaling_follows_in_the_rejoined_job() -> None:
    state = story(*IN_PLACE[:-1], ev.ScaleRequested(3.15, "r", 3, "me"))
    assert due(state) == (Rejoin(2),)
    assert due(evolve(state, IN_PLACE[-1])) == (Scale(2, 3),)


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


@pytest.mark.parametrize(("saved", "outcome"), [(100, "succeeded"), (80, None)])
def test_training_that_has_finished_is_complete_when_its_last_state_is_saved(
    saved: int, outcome: str | None
) -> None:
    state = story(
        *LIVE,
        ev.CheckpointCommitted(2.0, 1, saved, "k"),
        ev.WorkersEnded(3.0, 1, lost(), at_step(100, finished=True)),
        ev.AttemptGone(4.0, 1, at_step(100, finished=True)),
    )
    assert state.outcome == outcome
    assert (due(state) == (Submit(2, 2),)) is (outcome is None)


def test_a_worker_that_cannot_write_the_last_state_has_failed() -> None:
    error = RankError(at=3.0, error="the last checkpoint could not be written: the disk is full")
    ended = JobStatus((WorkerStatus("node-0", WorkerPhase.FAILED, errors=(error,)),))
    state = story(
        *LIVE,
        ev.WorkersEnded(3.0, 1, ended, at_step(100, finished=True)),
        ev.AttemptGone(4.0, 1, at_step(100, finished=True)),
    )
    assert state.outcome is None
    assert due(state) == (Submit(2, 2),)


@pytest.mark.parametrize("committed", [None, 80])
@pytest.mark.parametrize(
    "end",
    [
        ev.WorkersEnded(3.0, 1, lost(), at_step(100, finished=True, saved=100)),
        ev.Stalled(3.0, 1, 600.0, 100, at_step(100, finished=True, saved=100)),
        ev.StopRequested(3.0, "r", "me"),
    ],
)
def test_training_whose_last_state_is_in_memory_alone_is_not_complete(
    end: ev.Event, committed: int | None
) -> None:
    saved = [] if committed is None else [ev.CheckpointCommitted(2.0, 1, committed, "k")]
    gone = ev.AttemptGone(4.0, 1, at_step(100, finished=True, saved=100))
    state = story(*LIVE, *saved, end, gone)
    expected = Finish("stopped", "stopped by me") if isinstance(end, ev.StopRequested) else Submit(2, 2)
    assert due(state) == (expected,)
    state = story(*LIVE, ev.CheckpointCommitted(2.0, 1, 100, "k"), end, gone)
    assert state.outcome == "succeeded" or due(state) == (Finish("succeeded", "training is complete"),)


def test_training_that_finished_while_being_stopped_has_succeeded() -> None:
    state = story(
        *LIVE, ev.StopRequested(2.0, "r", "me"), ev.AttemptGone(3.0, 1, at_step(100, finished=True))
    )
    assert state.outcome == "succeeded"


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


def test_a_save_is_ordered_once() -> None:
    state = story(*LIVE, ev.SaveRequested(2.0, "r", "me"))
    assert evolve(state, ev.SaveRequested(2.1, "r", "me")) == state
    assert due(state) == (OrderSave(1, "r"),)
    assert due(evolve(state, ev.SaveOrdered(2.2, 1, "r"))) == ()


def test_refusal_by_the_engine_ends_the_run() -> None:
    state = story(ev.SubmitRefusedByEngine(1.0, 1, "no such image"))
    assert due(state) == (Delete(1, 0.0),)
    assert due(evolve(state, ev.AttemptGone(2.0, 1))) == (Finish("failed", "no such image"),)


def test_silence_ends_the_attempt() -> None:
    state = story(*LIVE, ev.Stalled(700.0, 1, 600.0, 57), ev.AttemptGone(701.0, 1))
    assert state.attempts[0].failure is not None
    assert state.attempts[0].failure.reason == "no progress for 600 s since step 57"
    assert due(state) == (Submit(2, 2),)


def test_a_checkpoint_that_was_set_aside_is_not_the_newest_any_more() -> None:
    aside = ev.CheckpointQuarantined(5.0, 2, 20, 10, "its bytes have changed")
    state = story(
        *LIVE,
        ev.CheckpointCommitted(1.5, 1, 10, "k10"),
        ev.CheckpointCommitted(1.6, 1, 20, "k20"),
        ev.WorkersEnded(2.0, 1, lost()),
        ev.AttemptGone(3.0, 1),
        ev.AttemptSubmitted(4.0, 2, "job-a2"),
        aside,
    )
    assert state.checkpoint is not None
    assert (state.checkpoint.step, state.attempt.from_step) == (10, 10)
    assert evolve(state, aside) == state
    again = evolve(state, ev.CheckpointCommitted(6.0, 2, 20, "k20"))
    assert again.checkpoint is not None
    assert again.checkpoint.step == 20, "its step can be saved again"


def test_each_of_several_damaged_checkpoints_is_news_once() -> None:
    newest, before = (
        ev.CheckpointQuarantined(5.0, 2, step, 10, "its bytes have changed") for step in (30, 20)
    )
    state = story(
        *LIVE,
        *(ev.CheckpointCommitted(1.5, 1, step, "k") for step in (10, 20, 30)),
        ev.WorkersEnded(2.0, 1, lost()),
        ev.AttemptGone(3.0, 1),
        ev.AttemptSubmitted(4.0, 2, "job-a2"),
        newest,
    )
    both = evolve(state, before)
    assert both != state, "the one that was not the newest any more"
    assert both.damaged == {20, 30}
    assert both.checkpoint is not None
    assert (both.checkpoint.step, both.attempt.from_step) == (10, 10)
    assert evolve(evolve(both, newest), before) == both, "each is told before it is set aside, and after"
    again = evolve(both, ev.CheckpointCommitted(6.0, 2, 20, "k"))
    assert again.damaged == {30}
    assert evolve(again, before) != again, "what was saved anew can be damaged anew"


def test_a_damaged_checkpoint_that_nobody_knew_of_is_news() -> None:
    state = story(*LIVE, ev.CheckpointCommitted(1.5, 1, 10, "k"))
    aside = evolve(state, ev.CheckpointQuarantined(5.0, 1, 20, 10, "its bytes have changed"))
    assert (aside.damaged, aside.checkpoint) == ({20}, state.checkpoint)


def test_a_copy_that_was_refused_stays_known() -> None:
    state = story(*LIVE, ev.CheckpointCommitted(1.5, 1, 20, "k"), ev.CheckpointCommitted(1.6, 1, 10, "k"))
    refused = evolve(state, ev.CopyRefused(2.0, 1, 20, "node-1", "its bytes have changed"))
    assert refused.bad_copy == Trouble(20, "node-1", "its bytes have changed", attempt=1)
    assert (refused.attempt, refused.checkpoint) == (state.attempt, state.checkpoint)
    assert evolve(refused, ev.CheckpointCommitted(3.0, 1, 30, "k")).bad_copy == refused.bad_copy
    older = evolve(state, ev.CopyRefused(2.0, 1, 20, "node-1", "its bytes have changed", newest=10))
    assert (older.attempt.from_step, older.checkpoint) == (10, state.checkpoint), "in storage it is whole"


def test_a_save_that_failed_is_known_until_another_one_succeeds() -> None:
    state = story(*LIVE, ev.SaveFailed(2.0, 1, 10, "node-1", "no space left"))
    assert state.unsaved == Trouble(10, "node-1", "no space left", attempt=1)
    assert evolve(state, ev.CheckpointCommitted(3.0, 1, 20, "k")).unsaved is None


def test_what_the_last_flush_of_an_attempt_could_not_write_is_known_to_the_next_one() -> None:
    over = story(*LIVE, ev.WorkersEnded(2.0, 1, failed()), ev.AttemptGone(3.0, 1))
    state = evolve(over, ev.SaveFailed(3.1, 1, 10, "node-1", "no space left"))
    assert state.attempt == over.attempt, "it is nothing that the next one has met"
    assert state.unsaved == Trouble(10, "node-1", "no space left", attempt=1)
    assert evolve(state, ev.CheckpointCommitted(4.0, 2, 5, "k")).unsaved is None


def test_a_refusal_to_prune_is_known_until_a_newer_checkpoint_is_committed() -> None:
    """The next commit prunes, too: where that is refused as well, it is told anew."""
    refused = ev.PruneRefused(2.0, 1, 20, "node-0", "what would stay (20) is damaged")
    state = story(*LIVE, ev.CheckpointCommitted(1.5, 1, 10, "k"), refused)
    assert state.unpruned == Unpruned(20, "what would stay (20) is damaged")
    state = evolve(state, ev.CheckpointCommitted(2.1, 1, 20, "k"))
    assert state.unpruned is not None, "it is told when that is committed, which may be seen later"
    assert evolve(state, ev.CheckpointCommitted(3.0, 1, 30, "k")).unpruned is None
    over = story(*LIVE, ev.WorkersEnded(2.0, 1, failed()), ev.AttemptGone(3.0, 1))
    assert evolve(over, refused).unpruned is not None, "what the last flush has met"


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


def test_a_checkpoint_of_a_former_attempt_counts_all_the_same() -> None:
    state = story(
        *LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1), ev.CheckpointCommitted(4.0, 1, 7, "k")
    )
    assert state.checkpoint is not None
    assert state.checkpoint.step == 7


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
