"""Which marks a chart shows where there are too many."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.overview.marks import kind_of, thinned
from airflow_elastic.spec import events as ev
from tests.support.builders import LIVE, failed, story

KINDS = ("attempt", "failure", "scale", "checkpoint", "straggler", "waiting", "request", "phase", "end")


@given(st.lists(st.sampled_from(KINDS), max_size=300), st.integers(1, 100))
def test_few_marks_stay_and_checkpoints_go_first(kinds: list[str], most: int) -> None:
    marks = [{"kind": kind, "at": at} for at, kind in enumerate(kinds)]
    kept = thinned(marks, most)
    assert len(kept) == min(len(marks), most)
    assert [mark["at"] for mark in kept] == sorted(mark["at"] for mark in kept)
    others = [mark for mark in marks if mark["kind"] != "checkpoint"]
    if len(others) <= most:
        assert [mark for mark in kept if mark["kind"] != "checkpoint"] == others


def test_what_stays_of_checkpoints_is_spread_over_the_whole_run() -> None:
    marks = [{"kind": "checkpoint", "at": at} for at in range(10_000)]
    kept = [mark["at"] for mark in thinned(marks, 100)]
    assert kept[0] == 0
    assert max(later - at for at, later in pairwise(kept)) == 100
    assert kept[-1] >= 9_900


def test_each_event_has_a_kind() -> None:
    """A new one needs a thought: without a kind it would be shown as a request."""
    from airflow_elastic.core.overview import marks

    assert set(marks._KINDS) | {ev.WorkersEnded} == set(get_args(ev.Event))


def test_an_end_of_workers_is_a_failure_only_if_it_was_none_of_ours() -> None:
    over = ev.WorkersEnded(2.0, 1, failed())
    assert kind_of(over, story(*LIVE, over)) == "failure"
