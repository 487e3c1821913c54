"""Whether a run is well, and why, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.overview.health import Level, duration, health
from airflow_elastic.core.status_document import document
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.status import Progress, RankReport, Stretch, Wait, Waiting
from tests.support.builders import LIVE, failed, lost, story

NOW = 1000.0


def at_work(**changes: Any) -> Progress:
    ranks = tuple(
        RankReport(rank, f"node-{rank}", 40, NOW - 1, 0.1, forward_seconds=0.01) for rank in range(4)
    )
    stretch = Stretch(1, 4, 4, NOW - 60, NOW - 50, NOW - 1, 0, 40, 40.0)
    defaults: dict[str, Any] = {"stretches": (stretch,), "ranks": ranks, "attached": True, "total_steps": 100}
    return Progress(1, NOW, 40, NOW - 1, **{**defaults, **changes})


def of(
    *events: ev.Event, progress: Progress | None = None, wait: Wait | None = None, **changes: Any
) -> tuple[str, str]:
    told = {**document("/r", story(*events), progress, NOW, wait), **changes}
    found = health(told, NOW)
    assert not found.headline.endswith(".")
    assert found.headline[:1] == found.headline[:1].upper()
    return str(found.level), found.headline


def test_a_run_that_trains_is_well() -> None:
    assert of(*LIVE, progress=at_work(samples_per_second=120.0)) == (
        "ok",
        "Trains at step 40 of 100, 120 samples/s",
    )


def test_why_it_is_slow() -> None:
    ranks = list(at_work().ranks)
    ranks[2] = RankReport(2, "node-2", 40, NOW, 0.1, forward_seconds=0.09)
    level, headline = of(*LIVE, progress=at_work(ranks=tuple(ranks)), stragglers=[2])
    assert level == "warning"
    assert headline.endswith("; rank 2 (node-2) holds the others up, by 80 ms of each 0.1 s step")
    unknown = of(*LIVE, progress=at_work(ranks=()), stragglers=[2])
    assert unknown[1].endswith("; rank 2 (unknown worker) holds the others up")


def test_one_slow_look_is_no_straggler() -> None:
    """Only what lasts counts, which a controller alone sees."""
    ranks = list(at_work().ranks)
    ranks[2] = RankReport(2, "node-2", 40, NOW, 0.1, forward_seconds=0.09)
    assert of(*LIVE, progress=at_work(ranks=tuple(ranks)))[0] == "ok"


def test_a_start_that_takes_most_of_its_time_is_worth_a_look() -> None:
    starting = {"since": NOW - 100, "limit_seconds": 250.0}
    document = {"state": "running", "attempts": [{"number": 1}], "starting": starting}
    assert health(document, NOW).level is Level.OK
    assert health(document, NOW + 50).level is Level.WARNING


def test_how_long_a_pause_lasts() -> None:
    document = {
        "state": "pausing",
        "attempts": [{"number": 2}],
        "pausing": {"until": NOW + 260, "since": NOW},
    }
    assert health(document, NOW).headline == "Pauses for 4 min more before attempt 2"
    assert health(document, NOW + 300).headline == "Pauses before attempt 2"


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (Waiting.QUEUED, "warning"),
        (Waiting.CAPACITY, "warning"),
        (Waiting.PULLING, "idle"),
        (Waiting.STARTING, "idle"),
    ],
)
def test_what_it_waits_for(state: Waiting, level: str) -> None:
    found, headline = of(*LIVE, wait=Wait(state, 2, 4, "3 Insufficient gpu"))
    assert found == level
    assert headline.startswith("Attempt 1 waits: 2 of 4 workers ")
    assert headline.endswith("3 Insufficient gpu")


def test_workers_that_wait_beside_training_ones() -> None:
    level, headline = of(*LIVE, progress=at_work(), wait=Wait(Waiting.CAPACITY, 1, 3))
    assert level == "warning"
    assert headline.endswith("; further workers wait: 1 of 3 workers waits for capacity")


def test_why_it_failed() -> None:
    over = ev.RunEnded(3.0, "failed", "rank 1 on node-1 failed: ValueError: bad")
    events = (*LIVE, ev.WorkersEnded(2.0, 1, failed()), over)
    assert of(*events) == ("error", "Rank 1 on node-1 failed: ValueError: bad")
    assert of(*LIVE, ev.RunEnded(3.0, "failed", "deadline")) == ("error", "Failed: deadline")
    assert of(*LIVE, ev.RunEnded(3.0, "succeeded", "training is complete"))[0] == "ok"
    assert of(*LIVE, ev.RunEnded(3.0, "stopped", "stopped by ada")) == ("idle", "Stopped by ada")


def test_what_an_attempt_follows() -> None:
    events = (*LIVE, ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1))
    level, headline = of(*events)
    assert level in ("warning", "idle")
    assert "after attempt 1 ended: " in headline
    assert "lost" in headline


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": float("nan")}, "the loss is not a number"),
        ({"loss": float("inf")}, "the loss is infinite"),
        ({"restarts": {"used": 3, "limit": 3}}, "all 3 restarts are used: the next failure ends the run"),
        ({"at": NOW - 300}, "No controller has written for 5 min"),
        ({"checkpoints": {"unsaved": {"step": 30, "reason": "the disk is full"}}}, "step 30 is not saved"),
    ],
)
def test_what_a_person_should_know(changes: dict[str, Any], words: str) -> None:
    level, headline = of(*LIVE, progress=at_work(), **changes)
    assert level == "warning"
    assert words in headline


def test_much_that_is_not_saved_is_told() -> None:
    reports = tuple(replace(rank, step_seconds=200.0) for rank in at_work().ranks)
    slow = at_work(ranks=reports, stretches=(Stretch(1, 4, 4, NOW - 60),))
    level, headline = of(*LIVE, progress=slow)
    assert (level, headline.endswith("; a failure now loses 40 steps, 2 h 13 min")) == ("warning", True)
    saved = {"checkpoints": {"newest": {"step": 39, "at": NOW}}}
    assert of(*LIVE, progress=slow, **saved)[0] == "ok"


def test_no_step_for_long_is_told() -> None:
    ranks = (RankReport(0, "node-0", 40, NOW - 200, 0.1),)
    level, headline = of(*LIVE, progress=at_work(ranks=ranks))
    assert (level, headline.endswith("no rank has made a step for 3 min")) == ("warning", True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "state": st.sampled_from(["running", "pausing", "queued", "ending", "strange"]),
            "outcome": st.sampled_from([None, "failed", "succeeded", "stopped", "strange"]),
            "reason": st.none() | st.text(max_size=20),
            "at": st.floats(0, 2000),
            "step": st.none() | st.integers(0, 10**9),
            "total_steps": st.none() | st.integers(0, 10**9),
            "loss": st.none() | st.floats(),
            "ranks": st.lists(
                st.fixed_dictionaries({"rank": st.integers(), "at": st.none() | st.floats(0, 2000)}),
                max_size=3,
            ),
            "stragglers": st.lists(st.integers(), max_size=5),
            "waiting": st.none()
            | st.fixed_dictionaries({"state": st.text(max_size=9), "workers": st.integers()}),
        },
    )
)
def test_documents_of_other_releases_are_read(found: dict[str, Any]) -> None:
    """With fields that are missing, and words that are not known."""
    told = health(found, NOW)
    assert told.level in set(Level)
    assert told.headline


@given(st.floats(-10, 1e8))
def test_a_duration_is_short(seconds: float) -> None:
    assert 3 <= len(duration(seconds)) <= 12
