"""The simulation: what must hold for every policy and every trace."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_elastic.core.goodput import goodput
from airflow_elastic.core.scaling.throughput import Fit
from airflow_elastic.testing.simulator.compare import compare
from airflow_elastic.testing.simulator.costs import Costs
from airflow_elastic.testing.simulator.metrics import figures
from airflow_elastic.testing.simulator.oracle import bounds
from airflow_elastic.testing.simulator.policies.known import NAMES, policy
from airflow_elastic.testing.simulator.simulation import Simulation
from airflow_elastic.testing.simulator.traces.synthetic import Synthetic, synthetic
from airflow_elastic.testing.simulator.traces.trace import Job, Outage, Trace

COSTS = Costs()
CURVE = Fit(0.1, 2.0, 0.01, ())


def alone(workers: int = 4, least: int = 1, most: int = 8, crashes: tuple[float, ...] = ()) -> Trace:
    job = Job("one", 0.0, workers, least, most, 3600, CURVE, crashes=crashes)
    return Trace("one job", (job,), 2, 4)


class Watched(Simulation):
    """Checks after each event that no more is held than there is."""

    def _happen(self, kind: int, what: object) -> None:
        super()._happen(kind, what)
        held = sum(run.held * run.job.gpus for run in self.runs if run.nodes)
        assert self.free >= 0
        assert held + self.free >= self.capacity
        for run in self.runs:
            assert sum(run.nodes.values()) == run.held
            assert run.held == 0 or run.spec.workers.at_least <= run.held <= run.spec.workers.at_most
        away = self._cluster._away
        for node in range(self._trace.nodes):
            there = sum(run.nodes.get(node, 0) * run.job.gpus for run in self.runs)
            assert there + self._cluster._free[node] == self._trace.gpus
            assert not there or node not in away


@pytest.mark.parametrize("which", ["least", "requested", "most"])
def test_a_run_alone_takes_its_analytic_time(which: str) -> None:
    trace = alone()
    done = Simulation(trace, policy(f"static-{which}")).play()
    job = trace.jobs[0]
    size = {"least": 1, "requested": 4, "most": 8}[which]
    stepping = job.steps * job.curve.step_seconds(size)
    assert done.now == pytest.approx(COSTS.start + stepping / COSTS.training)
    told = figures("x", done, trace.capacity)
    assert told.starting == pytest.approx(COSTS.start * size)
    assert told.needed + told.diluted == pytest.approx(stepping * size)
    assert told.diluted == pytest.approx(stepping * size - job.steps * job.curve.step_seconds(1))
    assert told.idle_while_wanted == pytest.approx((8 - size) * done.now)


def test_a_crash_costs_what_was_not_saved_and_a_start_in_place() -> None:
    trace = alone(crashes=(4 * 1500.0,))
    done = Simulation(trace, policy("static-requested")).play()
    told = figures("x", done, trace.capacity)
    run = done.runs[0]
    assert (run.state.outcome, run.restarts, len(run.state.attempts)) == ("succeeded", 1, 2)
    assert run.state.attempts[1].home == 1
    # Saves at 600 and 1200 seconds of steps: what came after the second is repeated.
    lost = 1500.0 * COSTS.training - 1200.0
    assert told.repeated == pytest.approx(lost * 4)
    undisturbed = Simulation(alone(), policy("static-requested")).play().now
    assert done.now == pytest.approx(undisturbed + lost / COSTS.training + COSTS.rejoin)


def test_the_loss_of_a_node_takes_a_new_job() -> None:
    job = Job("one", 0.0, 4, 4, 4, 3600, CURVE)
    trace = Trace("t", (job,), 2, 4, (Outage(0, 1000.0, 2000.0), Outage(1, 0.0, 3000.0)))
    done = Watched(trace, policy("static-requested")).play()
    run = done.runs[0]
    assert (run.state.outcome, run.restarts, len(run.state.attempts)) == ("succeeded", 1, 2)
    assert run.state.attempts[1].home is None
    assert run.state.attempts[1].submitted_at == pytest.approx(run.state.created_at + 2000.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_figures(name: str) -> None:
    what = Synthetic(runs=25, days=0.3, fail_hours=30)
    one, other = (compare(synthetic(what, 3), [name]) for _ in range(2))
    assert one.figures == other.figures


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10**6), in_place=st.booleans())
def test_gpu_time_is_conserved_and_nothing_beats_the_bounds(name: str, seed: int, in_place: bool) -> None:
    what = Synthetic(runs=20, days=0.2, nodes=3, fail_hours=12, median_seconds=1200, load=1.0)
    trace = synthetic(what, seed)
    done = Watched(trace, policy(name), in_place=in_place).play()
    told = figures(name, done, trace.capacity)
    assert told.succeeded == told.runs
    parts = told.needed + told.diluted + told.overhead + told.idle_while_wanted + told.idle
    assert parts == pytest.approx(told.available, rel=1e-9)
    for run in done.runs:
        assert run.account.held >= run.job.needed * (1 - 1e-9)
        assert run.state.outcome == "succeeded"
    least = bounds(trace, COSTS)
    assert told.makespan >= least.makespan * (1 - 1e-9)
    assert told.duration >= least.duration * (1 - 1e-9)
    assert told.lost >= least.lost * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_core_gives_the_same_account_of_each_run(name: str) -> None:
    trace = synthetic(Synthetic(runs=20, days=0.3, fail_hours=20), 4)
    done = Simulation(trace, policy(name)).play()
    for run in done.runs:
        told = goodput(run.state, None, run.state.ended_at or 0.0)
        wall = run.ended_at - run.job.submitted_at
        assert told["wall"] == pytest.approx(wall, abs=1e-3)
        whole_steps = 2 * len(run.state.attempts) * run.job.curve.step_seconds(run.job.least)
        stepping = told["training"] + told["repeated"]
        assert told["other"] == pytest.approx(0.0, abs=1e-3 * wall + 1.0)
        sizes = {stretch.workers for attempt in run.state.attempts for stretch in attempt.progress.stretches}
        if len(sizes) == 1:
            (size,) = sizes
            account = run.account
            assert stepping * size == pytest.approx(account.training + account.repeated, rel=1e-6)
            assert told["repeated"] * size == pytest.approx(account.repeated, abs=whole_steps * size + 1)
            assert told["saving"] * size == pytest.approx(account.saving, rel=1e-6)
