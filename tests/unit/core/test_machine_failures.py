"""What the machine does about a failure: the next attempt begins in the same job, or in a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_elastic.core.machine import due, evolve
from airflow_elastic.core.state import Cause, FailureKind, Phase
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Delete, Rejoin, Scale, Submit
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus
from tests.support.builders import LIVE, at_step, done, job, lost, rank, spec, story, worker

PEER_GONE = "RuntimeError: [/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3344"


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


def test_a_standby_worker_takes_the_place_of_a_preempted_one_at_no_cost() -> None:
    taken = replace(GONE, preempted=True)
    others = job(worker("running", name="node-0"), taken)
    for phase, follows in (("running", Rejoin(2, (1,))), ("pending", Delete(1, 30.0))):
        seen = replace(others, standby_workers=(worker(phase, name="node-2"),))
        state = story(*LIVE, ev.WorkersEnded(3.0, 1, seen, at_step(357)))
        assert (due(state), state.restarts_used) == ((follows,), 0)
        assert state.attempts[0].cause is Cause.PREEMPTION


SILENT = (
    worker("running", name="node-1", node="m1"),
    worker("failed", name="node-0", node="m0", errors=(rank(0, error=PEER_GONE),), standby=True),
)
STANDBY = worker("running", name="node-2", node="m2")


@pytest.mark.parametrize(
    ("workers", "standby", "lost"),
    [
        (SILENT, (STANDBY,), (1,)),
        (SILENT, (replace(STANDBY, node="m0"),), (1,)),
        (SILENT, (replace(STANDBY, node="m1"),), ()),
        (SILENT, (STANDBY, replace(STANDBY, name="node-3", node="m1")), ()),
        (SILENT, (replace(STANDBY, phase=WorkerPhase.PENDING),), ()),
        ((*SILENT, worker("running", name="node-3")), (STANDBY,), ()),
        (SILENT[1:], (STANDBY,), ()),
    ],
    ids=[
        "elsewhere",
        "with others",
        "beside it",
        "one of two beside it",
        "not ready",
        "two are silent",
        "none is",
    ],
)
def test_a_silent_worker_is_replaced_by_a_standby_worker_on_another_machine(
    workers: tuple[WorkerStatus, ...], standby: tuple[WorkerStatus, ...], lost: tuple[int, ...]
) -> None:
    """Its peers say that it is lost, long before the cluster notices that its machine is dead."""
    seen = replace(job(*workers), standby_workers=standby)
    state = story(*LIVE, ev.WorkersEnded(3.0, 1, seen, at_step(357)))
    (action,) = due(state)
    assert (action == Rejoin(2, lost)) if lost else isinstance(action, Delete)
    if lost:
        assert (state.restarts_used, state.suspect) == (1, "m1")


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
