"""How often a run saves that is left to find that out."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.core.checkpoints import save_interval as interval
from airflow_elastic.core.checkpoints.save_interval import save_interval, seconds_between_failures
from airflow_elastic.core.machine import replay
from airflow_elastic.core.state import RunState
from airflow_elastic.runtime.session.save_interval import SaveInterval
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.status import JobStatus, WorkerPhase, WorkerStatus
from tests.support.builders import spec

HOUR = 3600.0


def after(*lives: tuple[float, WorkerPhase]) -> RunState:
    """A run whose attempts took so many seconds each, and how they ended."""
    story: list[ev.Event] = [ev.RunCreated(0.0, spec(), True, None)]
    at = 0.0
    for number, (seconds, phase) in enumerate(lives, 1):
        ended = JobStatus((WorkerStatus("node-0", phase, preempted=phase is WorkerPhase.FAILED),))
        story += [ev.AttemptSubmitted(at, number, f"j{number}"), ev.WorkersEnded(at + seconds, number, ended)]
        story.append(ev.AttemptGone(at := at + seconds, number))
    state = replay(story)
    assert state is not None
    return state


def test_a_run_that_nothing_is_known_of_is_expected_to_fail_now_and_then() -> None:
    assert seconds_between_failures(after(), 0.0) == interval.EXPECTED_SECONDS


def test_what_is_seen_counts_more_the_longer_it_is_seen() -> None:
    lost, preempted = WorkerPhase.LOST, WorkerPhase.FAILED
    assert seconds_between_failures(after((6 * HOUR, lost)), 6 * HOUR) == 6 * HOUR
    assert seconds_between_failures(after((1 * HOUR, lost), (1 * HOUR, lost)), 2 * HOUR) == 8 / 3 * HOUR
    assert seconds_between_failures(after((6 * HOUR, preempted)), 6 * HOUR) == 12 * HOUR, "that is no failure"


def test_the_interval_is_youngs() -> None:
    found = save_interval(0.5, 1.0, 6 * HOUR)
    assert found.seconds == pytest.approx(math.sqrt(2 * 0.5 * 6 * HOUR))
    assert found.reason == (
        "a save stops training for 0.5 s and is written within 1 s, and a failure is expected every 6 h"
    )


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(1, 1e8), st.floats(1, 1e5))
def test_it_is_within_its_bounds(cost: float, written: float, between: float, longest: float) -> None:
    seconds = save_interval(cost, written, between, longest).seconds
    assert seconds <= longest
    assert seconds >= min(longest, interval.SHORTEST_SECONDS, 2 * written)


def test_it_follows_what_is_measured_and_tells_when_it_has_changed(caplog: pytest.LogCaptureFixture) -> None:
    words = memoryview(bytearray(256)).cast("d")
    words[shared_page.WRITING] = 3.0
    pace = SaveInterval(6 * HOUR, None, words, logs=True)
    assert pace.seconds == interval.FIRST_SECONDS
    with caplog.at_level(logging.WARNING):
        for cost in (4.0, 0.5, 0.5, 0.5):  # the first one had to find memory
            pace.measured(cost)
    assert pace.seconds == pytest.approx(math.sqrt(2 * 0.5 * 6 * HOUR))
    assert [record.message.split(" from")[0] for record in caplog.records] == [
        "saving every 416 s",
        "saving every 147 s",
    ]
