"""When a training ends, how fast its ranks are, and what it would lose: for any numbers."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.overview.eta import eta, paces
from airflow_elastic.core.overview.pace import median_seconds, recent_paces, relative
from airflow_elastic.core.overview.risk import at_risk

ANY = st.floats(allow_nan=True, allow_infinity=True)
PACE = st.floats(1e-4, 1e4)


@given(st.integers(0, 10**9), st.lists(PACE, min_size=1, max_size=100))
def test_the_estimate_is_within_its_spread_and_the_spread_within_the_paces(
    left: int, known: list[float]
) -> None:
    found = eta(left, known)
    assert found is not None
    assert 0 <= found.low <= found.seconds * (1 + 1e-9)
    assert found.seconds <= found.high * (1 + 1e-9)
    assert left * min(known) * (1 - 1e-9) <= found.low
    assert found.high <= left * max(known) * (1 + 1e-9)


@given(st.integers(1, 10**9), PACE, st.integers(1, 50))
def test_a_steady_pace_has_no_spread(left: int, pace: float, times: int) -> None:
    found = eta(left, [pace] * times)
    assert found is not None
    assert found.low == found.seconds == found.high == pytest.approx(left * pace)


@given(st.integers(-(10**6), 10**12), st.lists(ANY, max_size=30))
def test_no_number_breaks_it(left: int, known: list[float]) -> None:
    found = eta(left, known)
    usable = [pace for pace in known if math.isfinite(pace) and pace > 0]
    if found is None:
        assert left > 0
        assert not usable or max(usable) * left > 1e300
    else:
        assert all(math.isfinite(value) and value >= 0 for value in (found.seconds, found.low, found.high))


@given(st.lists(st.tuples(st.floats(0, 1e9), st.integers(0, 10**6)), max_size=50))
def test_paces_are_of_steps_that_go_on(points: list[tuple[float, int]]) -> None:
    points.sort(key=lambda point: point[0])
    found = paces([at for at, _ in points], [step for _, step in points])
    assert len(found) <= max(0, len(points) - 1)
    assert all(pace > 0 for pace in found)


def test_paces_leave_out_a_restart_and_a_pause() -> None:
    assert paces([0, 10, 20, 30, 40], [0, 10, 5, 5, 25]) == [1.0, 0.5]


@given(st.lists(st.one_of(st.none(), ANY), max_size=30))
def test_half_of_the_ranks_are_not_slower_than_the_median(seconds: list[float | None]) -> None:
    median = median_seconds(seconds)
    known = [one for one in seconds if one is not None and math.isfinite(one) and one > 0]
    assert median == (statistics.median(known) if known else None)
    compared = [value for one in seconds if (value := relative(one, median)) is not None]
    assert len(compared) == len(known) or median is None or not math.isfinite(median)
    assert sum(value <= 1.0 for value in compared) >= len(compared) / 2


@given(
    step=st.integers(0, 10**7),
    saved=st.one_of(st.none(), st.integers(0, 10**7)),
    pace=st.one_of(st.none(), PACE),
    outcome=st.sampled_from([None, "failed", "succeeded", "stopped"]),
)
def test_what_is_at_risk(step: int, saved: int | None, pace: float | None, outcome: str | None) -> None:
    document = {
        "outcome": outcome,
        "step": step,
        "attempts": [{"last_step": step}],
        "checkpoints": {"newest": None if saved is None else {"step": saved}},
    }
    risk = at_risk(document, pace)
    assert risk["steps"] == (0 if outcome == "succeeded" else max(0, step - (saved or 0)))
    assert risk["seconds"] == risk["steps"] * (pace or 0.0)


def test_the_pace_of_a_status_document() -> None:
    stretch = {"from_step": 100, "to_step": 201, "first_step_at": 1000.0, "last_step_at": 1050.0}
    document = {
        "ranks": [{"step_seconds": 0.4}, {"step_seconds": 0.2}, {"step_seconds": 0.3}, {}],
        "attempts": [{"stretches": [stretch]}, {"stretches": [{"from_step": 201, "first_step_at": None}]}],
    }
    assert recent_paces(document) == [pytest.approx(0.3), 0.5]
    assert recent_paces({}) == []
