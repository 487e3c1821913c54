"""What the machine knows of checkpoints: what is news, what is trouble, and that the last state is saved."""

from __future__ import annotations

import pytest

from airflow_elastic.core.health.deadlines import overdue
from airflow_elastic.core.machine import due, evolve
from airflow_elastic.core.state import CheckpointProblem, Unpruned
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.actions import Finish, OrderSave, Submit
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus
from tests.support.builders import LIVE, at_step, failed, lost, story


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


def test_a_save_is_ordered_once() -> None:
    state = story(*LIVE, ev.SaveRequested(2.0, "r", "me"))
    assert evolve(state, ev.SaveRequested(2.1, "r", "me")) == state
    assert due(state) == (OrderSave(1, "r"),)
    assert due(evolve(state, ev.SaveOrdered(2.2, 1, "r"))) == ()


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
    assert refused.bad_copy == CheckpointProblem(20, "node-1", "its bytes have changed", attempt=1)
    assert (refused.attempt, refused.checkpoint) == (state.attempt, state.checkpoint)
    assert evolve(refused, ev.CheckpointCommitted(3.0, 1, 30, "k")).bad_copy == refused.bad_copy
    older = evolve(state, ev.CopyRefused(2.0, 1, 20, "node-1", "its bytes have changed", newest=10))
    assert (older.attempt.from_step, older.checkpoint) == (10, state.checkpoint), "in storage it is whole"


def test_a_save_that_failed_is_known_until_another_one_succeeds() -> None:
    state = story(*LIVE, ev.SaveFailed(2.0, 1, 10, "node-1", "no space left"))
    assert state.unsaved == CheckpointProblem(10, "node-1", "no space left", attempt=1)
    assert evolve(state, ev.CheckpointCommitted(3.0, 1, 20, "k")).unsaved is None


def test_what_the_last_flush_of_an_attempt_could_not_write_is_known_to_the_next_one() -> None:
    over = story(*LIVE, ev.WorkersEnded(2.0, 1, failed()), ev.AttemptGone(3.0, 1))
    state = evolve(over, ev.SaveFailed(3.1, 1, 10, "node-1", "no space left"))
    assert state.attempt == over.attempt, "it is nothing that the next one has met"
    assert state.unsaved == CheckpointProblem(10, "node-1", "no space left", attempt=1)
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


def test_a_checkpoint_of_a_former_attempt_counts_all_the_same() -> None:
    state = story(
        *LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1), ev.CheckpointCommitted(4.0, 1, 7, "k")
    )
    assert state.checkpoint is not None
    assert state.checkpoint.step == 7


def test_a_save_that_was_left_out_is_told_once_until_the_next_checkpoint() -> None:
    state = story(*LIVE)
    for committed, step, expected in (
        (0, 10, True),
        (0, 15, False),
        (20, 18, False),
        (0, 25, True),
        (0, 30, False),
    ):
        if committed:
            state = evolve(state, ev.CheckpointCommitted(5.0, 1, committed, "k"))
        told = at_step(step + 1, moved_at=9.0, left_out=step, writing_seconds=12.4)
        events = list(overdue(state, told, 10.0))
        assert [event.step for event in events if isinstance(event, ev.SaveLeftOut)] == [step] * expected
        for event in events:
            state = evolve(state, event)
    left_out = document("uri", state, None, 11.0)["checkpoints"]["left_out"]
    assert left_out["step"] == 25
    assert "still being written to storage, which took 12 s the last time" in left_out["reason"]
    assert state.attempt.cause is None
