"""Shares of a capacity, by properties."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.core.brain.shares import Claim, shares, words
from airflow_elastic.core.scaling.throughput import Fit


@st.composite
def claim(draw: st.DrawFn, number: int, cost: int | None = None) -> Claim:
    unit = draw(st.sampled_from([1, 2, 4]))
    least = unit * draw(st.integers(1, 3))
    sizes = tuple(range(least, least + unit * draw(st.integers(1, 8)), unit))
    times = st.floats(0.0, 2.0)
    curve = Fit(draw(times), draw(st.floats(0.1, 10.0)), draw(st.sampled_from([0.0, 0.01, 0.5])), (1, 2))
    return Claim(
        f"run-{number}",
        sizes,
        priority=draw(st.integers(0, 3)),
        cost=cost or draw(st.sampled_from([1, 2, 8])),
        curve=draw(st.sampled_from([None, curve])),
        trains=draw(st.booleans()),
        since=draw(st.sampled_from([0.0, 1.0, 2.0])),
    )


@st.composite
def claims(draw: st.DrawFn, cost: int | None = None) -> list[Claim]:
    return [draw(claim(i, cost)) for i in range(draw(st.integers(1, 7)))]


capacities = st.integers(0, 120)


@given(claims(), capacities)
def test_never_more_than_there_is_and_only_sizes_that_are_allowed(runs: list[Claim], capacity: int) -> None:
    given = shares(runs, capacity)
    assert sum(given[one.run] * one.cost for one in runs) <= capacity
    assert all(given[one.run] in (0, *one.sizes) for one in runs)


@given(claims(), capacities)
def test_what_trains_keeps_its_fewest_workers(runs: list[Claim], capacity: int) -> None:
    needed = sum(one.sizes[0] * one.cost for one in runs if one.trains)
    given = shares(runs, capacity + needed)
    assert all(given[one.run] >= one.sizes[0] for one in runs if one.trains)


@given(claims(), capacities, st.data())
@settings(max_examples=300)
def test_a_higher_priority_never_gives_less(runs: list[Claim], capacity: int, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(runs) - 1))
    before = shares(runs, capacity)[runs[i].run]
    higher = replace(runs[i], priority=runs[i].priority + data.draw(st.integers(1, 3)))
    raised = [*runs[:i], higher, *runs[i + 1 :]]
    assert shares(raised, capacity)[runs[i].run] >= before


@given(claims(), capacities)
def test_it_depends_on_the_claims_and_not_on_their_order(runs: list[Claim], capacity: int) -> None:
    assert shares(runs, capacity) == shares(list(reversed(runs)), capacity)


@given(claims(cost=1), capacities)
@settings(max_examples=300)
def test_nobody_could_have_more_without_taking_it_from_one_that_has_less(
    runs: list[Claim], capacity: int
) -> None:
    """Max-min: of two runs of one priority, the faster one's last step was not above the other's level."""
    runs = [replace(one, sizes=tuple(range(one.sizes[0], one.sizes[-1] + 1))) for one in runs]
    given = shares(runs, capacity)
    for slow in runs:
        for fast in runs:
            if slow.priority != fast.priority or not given[slow.run] or not given[fast.run]:
                continue
            slower, faster = dict(slow.ladder), dict(fast.ladder)
            more, less = given[slow.run] + 1, given[fast.run] - 1
            if more in slower and less in faster:
                assert faster[less] <= slower[given[slow.run]] + 1e-9


@given(claims(cost=1), capacities)
def test_no_room_is_left_that_a_run_could_use(runs: list[Claim], capacity: int) -> None:
    given = shares(runs, capacity)
    left = capacity - sum(given[one.run] for one in runs)
    for one in runs:
        if given[one.run]:
            ladder = [size for size, _ in one.ladder]
            further = ladder[ladder.index(given[one.run]) + 1 :][:1]
            assert not further or further[0] - given[one.run] > left


def test_a_run_of_high_priority_takes_all_but_what_others_need_to_go_on() -> None:
    low = Claim("low", (1, 2, 3, 4, 5, 6, 7, 8), trains=True)
    high = Claim("high", (2, 3, 4, 5, 6), priority=10)
    assert shares([low], 8) == {"low": 8}
    assert shares([low, high], 8) == {"high": 6, "low": 2}
    assert shares([low, high], 4) == {"high": 3, "low": 1}
    assert shares([low, high], 2) == {"high": 0, "low": 2}


def test_no_run_begins_past_one_of_a_higher_priority_that_waits() -> None:
    running = Claim("running", (2, 3, 4), trains=True)
    large = Claim("large", (6,), priority=1)
    small = Claim("small", (1,))
    assert shares([running, large, small], 6) == {"running": 4, "large": 0, "small": 0}
    assert shares([running, replace(large, priority=0), small], 6) == {"running": 4, "large": 0, "small": 1}


def test_a_run_that_gains_little_leaves_workers_to_others() -> None:
    flat = Claim("flat", tuple(range(1, 9)), curve=Fit(1.0, 0.1, 0.0, (1, 2)), trains=True)
    steep = Claim("steep", tuple(range(1, 9)), curve=Fit(0.01, 1.0, 0.0, (1, 2)), trains=True)
    found = shares([flat, steep], 9)
    assert found["steep"] > found["flat"]
    said = words(steep, found["steep"], [flat, steep], 9)
    assert f"{found['steep']} of at most 8" in said
    assert "1 other run with 9 units" in said
