"""Where the time of a run went: the rows sum to its wall time, whatever the clocks of its machines say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.goodput import goodput, goodput_share
from airflow_elastic.spec.status import Progress, Stretch
from tests.support.builders import LIVE, story

NOW = 1000.0
ANY_TIME = st.floats(-(10**9), 10**9) | st.floats(0, NOW)


@given(st.lists(st.tuples(ANY_TIME, ANY_TIME, ANY_TIME, st.floats(0, 10**6)), min_size=1, max_size=4))
def test_the_rows_sum_to_the_wall_time(stretches: list[tuple[float, float, float, float]]) -> None:
    found = tuple(
        Stretch(number, 2, 2, started, first, last, 0, 20, stepping)
        for number, (started, first, last, stepping) in enumerate(stretches)
    )
    spent = goodput(story(*LIVE), Progress(1, NOW, 20, NOW, stretches=found), NOW)
    wall = spent.pop("wall")
    assert all(seconds >= 0 for seconds in spent.values())
    assert sum(spent.values()) == pytest.approx(wall)
    assert 0 <= goodput_share({**spent, "wall": wall}) <= 1 + 1e-9
