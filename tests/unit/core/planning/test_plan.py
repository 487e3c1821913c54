"""Plans from what is known of times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.planning.duration import BETWEEN, BEYOND, MEASURED, duration, spread
from airflow_elastic.core.planning.known import Known, known_of
from airflow_elastic.core.planning.plan import Plan, plan
from airflow_elastic.core.planning.words import lines
from airflow_elastic.core.scaling.throughput import Fit, fit
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.scaling.observation import Speed
from airflow_elastic.spec.scaling.policy import ScalingPolicy
from airflow_elastic.spec.scaling.workers import Workers
from tests.unit.core.brain.test_proposals import fact, speeds, trains

#: A step: 0.1 s that no number of workers changes, and 1 s that they divide.
CURVE = speeds((1, 1.1), (2, 0.6), (4, 0.35))
KNOWN = Known(
    runs=3,
    speeds=CURVE,
    total_steps=36_000,
    start_seconds=60.0,
    save_seconds=1.0,
    written_seconds=2.0,
    worker_hours=100.0,
    failures=4,
)
AT_SIX = 6 * 3600.0


def by_number(found: Plan) -> dict[int, float | None]:
    return {one.workers: one.seconds for one in found.options}


def test_nothing_known_is_said_and_not_guessed() -> None:
    found = plan(trains(), Known(), 0.0)
    assert (found.recommended, found.options, found.parts, found.bottleneck) == (None, (), (), None)
    assert [line.partition(":")[0] for line in found.unknown] == [
        "the time of a step",
        "the number of steps",
        "the cost of a save",
        "the time of a start",
    ]


def test_time_and_cost_by_number_of_workers() -> None:
    found = plan(trains(), KNOWN, 0.0, price=2.0)
    options = {one.workers: one for one in found.options}
    assert {1, 2, 4, 8, 16} <= set(options)
    two = options[2]
    assert two.seconds == pytest.approx(36_000 * 0.6, rel=0.02)
    assert two.seconds is not None
    assert two.low is not None
    assert two.high is not None
    assert two.low < two.seconds < two.high
    assert two.gpu_hours == pytest.approx(two.seconds * 2 / 3600)
    assert two.cost == pytest.approx(2 * (two.gpu_hours or 0))
    assert (two.measured, two.spread) == (True, pytest.approx(MEASURED))
    assert (options[8].measured, options[8].spread) == (False, pytest.approx(BEYOND))
    assert options[1].efficiency == 1.0
    assert options[4].efficiency == pytest.approx(1.1 / 1.4)
    assert found.recommended == 8  # twice as many as were measured: no further
    assert any(
        line.startswith("workers.count: 8 instead of 2 makes a step 2.67 times") for line in found.changes
    )


def test_a_plan_in_lines() -> None:
    found = list(lines("mnist", plan(trains(), KNOWN, 0.0, price=2.0)))
    assert found[0] == "mnist: at step 0 of 36000; from 3 runs"
    assert found[1].startswith("workers: 8, instead of 2: ")
    assert any(line.startswith("2 workers: 0.6 s a step, done in 6 h") and "cost" in line for line in found)
    assert any(line.startswith("bottleneck: fixed") for line in found)
    assert list(lines("mnist", plan(trains(), Known(), 0.0)))[1].startswith("unknown: the time of a step")


def test_a_policy_decides_what_is_recommended() -> None:
    policy = ScalingPolicy(done_by="06:00")  # planned at midnight: six hours
    found = plan(trains(scaling_policy=policy), KNOWN, 0.0)
    seconds = by_number(found)
    assert found.recommended is not None
    assert (seconds[found.recommended] or 0) < AT_SIX * 0.95
    assert "before" in found.why
    slower = plan(trains(scaling_policy=ScalingPolicy(done_by="23:00")), KNOWN, 0.0)
    assert (slower.recommended or 0) < found.recommended


def test_where_the_time_goes() -> None:
    assert (plan(trains(), KNOWN, 0.0).bottleneck or 0).name == "fixed"  # type: ignore[union-attr]
    slow_network = replace(KNOWN, speeds=speeds((1, 1.0), (2, 0.7), (4, 0.85), (8, 1.525)))
    found = plan(trains(workers=Workers(8)), slow_network, 0.0)
    assert found.bottleneck is not None
    assert found.bottleneck.name == "synchronisation"
    assert any("a faster network" in line for line in found.changes)
    idle = replace(KNOWN, speeds=speeds((2, 0.6)), gpu_use=0.3, cpu_use=3.9)
    one = plan(trains(), idle, 0.0)
    assert one.bottleneck is not None
    assert one.bottleneck.name == "data"
    assert any(
        "GPUs compute in 30% of the time, a worker uses 3.9 processors" in line for line in one.changes
    )
    saves = replace(KNOWN, save_seconds=30.0)
    often = trains(checkpoint=CheckpointPolicy(every_seconds=40.0))
    assert (plan(often, saves, 0.0).bottleneck or 0).name == "saving"  # type: ignore[union-attr]
    assert any("checkpoint.every_seconds" in line for line in plan(often, saves, 0.0).changes)


def test_one_measured_number_is_not_enough_to_compare() -> None:
    found = plan(trains(), replace(KNOWN, speeds=speeds((2, 0.6))), 0.0)
    assert found.recommended == 2
    assert any("only one number is measured" in line for line in found.unknown)
    assert {one.name for one in found.parts} >= {"steps"}


def test_without_the_number_of_steps_only_the_end_is_unknown() -> None:
    found = plan(trains(), replace(KNOWN, total_steps=None), 0.0)
    assert found.recommended == 8
    assert {one.seconds for one in found.options} == {None}
    assert found.parts


def test_more_workers_fail_more_often() -> None:
    curve = Fit(1.0, 0.0, 0.0, (1, 2))
    unreliable = replace(KNOWN, worker_hours=1000.0, failures=100)
    times = [duration(trains(), unreliable, curve, n, 10_000).failing for n in (1, 4, 16)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_spread_says_how_far_the_curve_is_trusted() -> None:
    curve = fit(speeds((1, 1.1), (4, 0.35)))
    assert curve is not None
    assert [spread(curve, n) for n in (1, 2, 8)] == pytest.approx([MEASURED, BETWEEN, BEYOND])


def test_facts_become_known_times() -> None:
    run = trains()
    past = [
        fact(run, i, speeds=speeds((1, 1.0 + i)), longest_start_seconds=9.0, start_seconds=5.0 + i)
        for i in range(3)
    ]
    own = fact(run, 9, speeds=speeds((2, 0.7)), outcome=None, steps=40, save_seconds=3.0, saves=1)
    known = known_of(run, [*past, own], own)
    assert (known.runs, known.step, known.total_steps) == (4, 40, 100)
    assert {one.workers: one.step_seconds for one in known.speeds} == {1: pytest.approx(2.0), 2: 0.7}
    assert (known.start_seconds, known.save_seconds) == (6.0, 3.0)
    assert known_of(run, past).total_steps == 100  # as the newest run with equal arguments
    assert known_of(trains(command=("train.py",)), past).total_steps is None
    again = known_of(run, past, replace(own, outcome="succeeded"))
    assert again.step == 0  # for another run like it


@given(
    st.lists(
        st.builds(Speed, st.integers(1, 32), st.floats(1e-4, 1e4), st.integers(1, 1000)),
        max_size=4,
        unique_by=lambda one: one.workers,
    ),
    st.none() | st.integers(0, 10**7),
    st.none() | st.floats(0, 1e4),
    st.integers(0, 50),
)
def test_a_plan_is_whole(measured: list[Speed], total: int | None, save: float | None, failures: int) -> None:
    known = Known(1, tuple(measured), 0, total, save_seconds=save, worker_hours=5.0, failures=failures)
    run = trains()
    found = plan(run, known, 0.0, 1.0)
    assert found == plan(run, known, 0.0, 1.0)
    assert (found.recommended is None) == (not measured)
    if found.recommended is not None:
        assert run.workers.permits(found.recommended)
        assert found.recommended in by_number(found)
    for one in found.options:
        assert one.step_seconds > 0
        if one.seconds is not None:
            assert one.low is not None
            assert one.high is not None
            assert one.low <= one.seconds * (1 + 1e-9)
            assert one.seconds <= one.high * (1 + 1e-9)
    if found.parts:
        assert sum(one.share for one in found.parts) == pytest.approx(1.0)
