"""Policies on synthetic traces in virtual time: what is lost, and how fast the simulator and a decision are.

Bounded in CI: a small trace. The long forms are benches: `make bench ARGS="-k simulator"`.
"""

from __future__ import annotations

import time

import pytest

from airflow_elastic.core.scaling import decide as rules
from airflow_elastic.testing.simulator.compare import Comparison, compare
from airflow_elastic.testing.simulator.policies import elastic
from airflow_elastic.testing.simulator.policies.known import NAMES, policy
from airflow_elastic.testing.simulator.simulation import Simulation
from airflow_elastic.testing.simulator.traces.synthetic import Synthetic, synthetic

#: The goals: GPU time lost against the best static size and the best baseline, at no worse makespan.
OF_STATIC, OF_BASELINE = 0.5, 0.8

BASELINES = ("hpa-cpu", "dlrover", "pollux")


def lost(done: Comparison, *names: str) -> float:
    """The least that any of these has lost, GPU hours."""
    return min(one.lost for one in done.figures if one.policy in names) / 3600


def test_shares_lose_less_than_every_fixed_size() -> None:
    """The bounded form."""
    trace = synthetic(Synthetic(runs=60, days=0.7, load=0.8), 1)
    done = compare(trace, [name for name in NAMES if name.startswith("static")] + ["elastic-shared"])
    statics = [name for name in NAMES if name.startswith("static")]
    assert lost(done, "elastic-shared") < lost(done, *statics)
    assert lost(done, "elastic-shared") >= done.bounds.lost / 3600


@pytest.mark.bench
@pytest.mark.parametrize("load", [0.4, 0.7, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gpu_time_lost(seed: int, load: float) -> None:
    done = compare(synthetic(Synthetic(runs=300, days=3, load=load, fail_hours=300), seed), NAMES)
    statics = [name for name in NAMES if name.startswith("static")]
    mine, bound = lost(done, "elastic-shared"), done.bounds.lost / 3600
    static, baseline = lost(done, *statics), lost(done, *BASELINES)
    print(f"\nseed {seed}, load {load}: lost GPU hours {mine:.0f}, no schedule beats {bound:.0f}")
    print(f"  {mine / static:.2f}x of the best static size, {static:.0f} (goal {OF_STATIC})")
    print(f"  {mine / baseline:.2f}x of the best baseline, {baseline:.0f} (goal {OF_BASELINE})")
    for goal, of in ((OF_STATIC * static, "static"), (OF_BASELINE * baseline, "baseline")):
        if goal < bound:
            print(f"  no schedule reaches the goal against the best {of}: {goal:.0f} is below the bound")
    for one in done.figures:
        print(
            f"  {one.policy:17} makespan {one.makespan / 3600:.1f} h, at least {done.bounds.makespan / 3600:.1f}; "
            f"takes {one.duration / 3600:.2f} h, at least {done.bounds.duration / 3600:.2f}; "
            f"lost {one.lost / 3600:.0f}; goodput {one.goodput:.1%}; worst {one.rho_worst:.1f}"
        )
    assert mine < static


@pytest.mark.bench
@pytest.mark.parametrize("name", ["static-requested", "elastic-shared"])
def test_ten_thousand_runs_of_thirty_days(name: str) -> None:
    trace = synthetic(Synthetic(runs=10_000, days=30), 1)
    begun = time.process_time()
    done = Simulation(trace, policy(name)).play()
    took = time.process_time() - begun
    print(f"\n{name}: {len(done.runs)} runs, {done.events} events, {trace.capacity} GPUs")
    print(f"  {took:.0f} s of one core (goal 600)")
    assert took < 600


@pytest.mark.bench
def test_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[float] = []

    def timed(*args: object) -> object:
        begun = time.process_time()
        decision = rules.decide(*args)  # type: ignore[arg-type]
        took.append(time.process_time() - begun)
        return decision

    monkeypatch.setattr(elastic, "decide", timed)
    Simulation(synthetic(Synthetic(runs=200), 1), policy("elastic-shared")).play()
    took.sort()
    middle, late = took[len(took) // 2], took[int(0.99 * len(took))]
    print(
        f"\n{len(took)} decisions: median {1e3 * middle:.2f} ms, 99 % within {1e3 * late:.2f} ms (goal 1 ms)"
    )
    assert middle < 1e-3
