"""When the controller stops waiting for further evidence."""

from __future__ import annotations

import pytest

from airflow_elastic.core.health.settle_time import (
    ALONE_SECONDS,
    SETTLE_SECONDS,
    TELL_SECONDS,
    settle_time,
)
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.status import WorkerStatus
from tests.support.builders import at_step, job, rank, story, worker

ALIVE = worker("running", name="node-0")


@pytest.mark.parametrize(
    ("dead", "settled"),
    [
        (worker("lost"), True),
        (worker("failed", errors=(rank(signal=9),)), True),
        (worker("failed", errors=(rank(1, error="RuntimeError: Connection closed by peer"),)), False),
        (worker("failed", errors=(rank(signal=6),)), False),  # a watchdog's way to say that its peer has gone
        (worker("failed"), False),
    ],
)
def test_a_cause_needs_no_waiting_and_a_consequence_does(dead: WorkerStatus, settled: bool) -> None:
    assert job(ALIVE, dead).settled is settled
    assert job(worker("failed", name="node-0"), dead).settled


def test_one_that_can_be_replaced_may_not_be_the_only_one_that_is_lost() -> None:
    standing = worker("failed", errors=(rank(1),), standby=True)
    for dead, seconds in (
        (worker("lost"), 0.0),
        (worker("lost", replaceable=True), ALONE_SECONDS),
        (worker("failed"), SETTLE_SECONDS),
        (standing, TELL_SECONDS),
    ):
        status = job(ALIVE, dead)
        assert settle_time(status, status, story()) == seconds


def test_what_training_has_come_to_is_written_before_a_rank_that_fails_at_its_end_is_judged() -> None:
    """Else another attempt would begin at the end, which not every script can, and count as a restart."""
    standing = worker("failed", errors=(rank(1),), standby=True)
    ended = at_step(100, finished=True, saved=100)
    saved, live = story(ev.CheckpointCommitted(2.0, 1, 100, "k")), story()
    for dead, state, progress, is_awaited in (
        (standing, live, ended, True),
        (standing, saved, ended, False),
        (standing, live, at_step(100, saved=100), False),
        (standing, live, at_step(100, finished=True), False),
        (worker("failed"), live, ended, False),
    ):
        status = job(ALIVE, dead)
        health = state.spec.health
        # An agent tries again for half of that time, with pauses that are as long as the grace period.
        assert (settle_time(status, status, state, progress) >= health.no_progress_seconds / 2) is is_awaited
