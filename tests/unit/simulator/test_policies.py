"""Policies to compare with, by the examples and formulas of their documents and papers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.metrics import figures
from airflow_elastic.testing.simulator.policies import dlrover, hpa, pollux
from airflow_elastic.testing.simulator.policies.known import policy
from airflow_elastic.testing.simulator.simulation import Simulation
from airflow_elastic.testing.simulator.traces.trace import Job, Trace

#: One worker: 1 s. It scales well: 8 workers give 0.93 of their best.
LINEAR = Fit(0.002, 0.998, 0.001, ())


def played(trace: Trace, name: str) -> Simulation:
    return Simulation(trace, policy(name)).play()


@pytest.mark.parametrize(
    ("current", "use", "target", "wanted"),
    [
        (1, 0.2, 0.1, 2),  # the documentation's 200m against 100m: twice as many
        (2, 0.05, 0.1, 1),  # its 50m: half
        (4, 0.105, 0.1, 4),  # within the tolerance of 0.1
        (4, 0.111, 0.1, 5),
        (3, 0.9, 0.5, 6),  # rounded up
    ],
)
def test_hpa_has_the_documented_formula(current: int, use: float, target: float, wanted: int) -> None:
    assert hpa.desired(current, use, target) == wanted


def test_hpa_at_most_doubles_or_adds_four() -> None:
    assert [hpa.fastest_growth(size) for size in (1, 3, 4, 10)] == [5, 7, 8, 20]


def test_hpa_settles_where_its_target_is_met() -> None:
    job = Job("one", 0.0, 1, 1, 32, 100_000, replace(LINEAR, per_worker=0.01))
    run = played(Trace("t", (job,), 4, 8), "hpa-cpu").runs[0]
    size = run.state.attempt.workers
    use = job.curve.divided / size / job.curve.step_seconds(size)
    assert abs(use / hpa.TARGET - 1.0) <= hpa.TOLERANCE
    assert run.scale_steps <= 4


@pytest.mark.parametrize(
    ("alive", "free", "unit", "planned"), [(4, 4, 4, 8), (4, 3, 4, 4), (4, 3, 1, 7), (8, 9, 1, 8)]
)
def test_dlrover_plans_what_is_alive_and_free(alive: int, free: int, unit: int, planned: int) -> None:
    assert dlrover.plan(alive, free, 8, unit) == planned


def test_dlrover_grows_after_half_an_hour_and_never_shrinks() -> None:
    first = Job("first", 0.0, 4, 1, 8, 2000, LINEAR)
    second = Job("second", 1.0, 4, 1, 8, 20_000, LINEAR)
    done = played(Trace("t", (first, second), 1, 12), "dlrover")
    assert [attempt.workers for run in done.runs for attempt in run.state.attempts] == [8, 8]
    assert [run.scale_steps for run in done.runs] == [0, 1]


def test_pollux_has_the_published_formulas() -> None:
    assert pollux.fitness([1.0, 1.0]) == pytest.approx(1.0)
    assert pollux.fitness([2.0, 1.0]) == pytest.approx(4 / 3)  # the harmonic mean
    assert pollux.fitness([2.0, 0.0]) == 0.0
    assert pollux.fitness([3.0, 1.0], p=1.0) == pytest.approx(2.0)
    assert pollux.reallocation_factor(600.0, 2) == pytest.approx(540 / 630)
    assert pollux.reallocation_factor(30.0, 5) == 0.0


def test_pollux_shares_equally_among_equals() -> None:
    jobs = tuple(Job(f"j{i}", 0.0, 4, 1, 16, 30_000, LINEAR) for i in range(4))
    sizes = []

    class Seen(Simulation):
        def _happen(self, kind: int, what: object) -> None:
            super()._happen(kind, what)
            sizes.append(sorted(run.held for run in self.runs))

    Seen(Trace("t", jobs, 2, 8), policy("pollux")).play()
    assert [4, 4, 4, 4] in sizes


def test_pollux_doubles_at_most() -> None:
    job = Job("one", 0.0, 1, 1, 32, 50_000, LINEAR)
    run = played(Trace("t", (job,), 4, 8), "pollux").runs[0]
    sizes = [stretch.workers for attempt in run.state.attempts for stretch in attempt.progress.stretches]
    assert sizes[:3] == [1, 2, 4]
    assert all(b <= 2 * max(sizes[: i + 1]) for i, b in enumerate(sizes[1:]))


def test_shares_make_room_for_a_run_that_arrives() -> None:
    first = Job("first", 0.0, 4, 1, 8, 40_000, LINEAR)
    second = Job("second", 3600.0, 4, 1, 8, 4000, LINEAR)
    done = played(Trace("t", (first, second), 1, 8), "elastic-shared")
    assert done.runs[0].first_start == 0.0
    assert done.runs[1].first_start - 3600.0 < 60.0
    sizes = [stretch.workers for stretch in done.runs[0].state.attempts[0].progress.stretches]
    assert 8 in sizes
    assert min(sizes) <= 4
    assert len(done.runs[0].state.attempts) == 1  # in place, without an end


def test_where_steps_are_not_made_in_place_each_takes_a_new_job() -> None:
    job = Job("one", 0.0, 1, 1, 8, 20_000, LINEAR)
    run = Simulation(Trace("t", (job,), 1, 8), policy("pollux"), in_place=False).play().runs[0]
    assert run.scale_steps >= 3
    assert len(run.state.attempts) == run.scale_steps + 1
    assert run.account.repeated == 0.0  # they save before they leave


def test_a_policy_of_the_runs_own_is_in_its_journal() -> None:
    job = Job("one", 0.0, 2, 1, 8, 40_000, LINEAR)
    run = played(Trace("t", (job,), 1, 8), "elastic-alone").runs[0]
    assert run.state.scaling.steps >= 1
    assert run.state.scaling.decided is not None
    assert run.state.attempt.workers == 8


def test_a_baseline_beats_no_bound_and_loses_nothing_it_should_not() -> None:
    job = Job("one", 0.0, 8, 8, 8, 3600, LINEAR)
    told = figures("x", played(Trace("t", (job,), 1, 8), "static-requested"), 8)
    assert told.lost == pytest.approx(
        8 * (Costs().start + 3600 * LINEAR.step_seconds(8) * (1 / Costs().training - 1))
    )
