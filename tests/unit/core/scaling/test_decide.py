"""Properties of every decision, whatever the policy and whatever is seen."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.scaling.throughput import fit
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.form import contradictions, sizes
from airflow_elastic.spec.scaling.observation import (
    Capacity,
    Claim,
    Decision,
    Observation,
    Share,
    Signal,
    Speed,
)
from airflow_elastic.spec.scaling.policy import (
    SHARES,
    CapacityRule,
    LoadTarget,
    ScalingPolicy,
    Window,
    WorthRule,
)

NOW = 1_800_000_000.0


@st.composite
def workers_of(draw: st.DrawFn) -> Workers:
    unit = draw(st.integers(1, 4))
    low, high = sorted((draw(st.integers(1, 8)), draw(st.integers(1, 8))))
    count = draw(st.integers(low, high))
    return Workers(count * unit, min=low * unit, max=high * unit, node_unit=unit)


@st.composite
def policies(draw: st.DrawFn, workers: Workers) -> ScalingPolicy:
    maybe = lambda one: st.none() | one  # noqa: E731
    names = draw(
        st.lists(st.sampled_from(["cpu", "gpu", "samples_per_second", "metrics.queue"]), unique=True)
    )
    targets, shares = st.floats(0.05, 100), st.floats(0.05, 1)
    load = tuple(
        LoadTarget(
            name,
            target=draw(shares if name in SHARES else targets),
            each=draw(st.booleans()) and name.startswith("metrics"),
        )
        for name in names
    )
    permitted = [n for n in range(workers.at_least, workers.at_most + 1) if workers.permits(n)]
    window = st.builds(
        Window, st.just("0 20 * * *"), st.just("0 6 * * *"), workers=st.sampled_from(permitted)
    )
    try:
        policy = ScalingPolicy(
            load=load,
            capacity=draw(maybe(st.builds(CapacityRule, leave_free=st.integers(0, 3)))),
            worth=draw(maybe(st.builds(WorthRule, efficiency=st.floats(0.05, 1)))),
            windows=tuple(draw(st.lists(window, max_size=2))),
            done_by=draw(maybe(st.just("06:00"))),
            gpu_hours=draw(maybe(st.floats(0.1, 100))),
            sizes=tuple(draw(st.lists(st.sampled_from(permitted), max_size=4))),
            must_pay=draw(st.booleans()),
        )
    except SpecError:
        assume(False)
    assume(not list(contradictions(policy, workers)))
    return policy


def signals() -> st.SearchStrategy[dict[str, Signal]]:
    values = st.floats(0.01, 1000)
    one = st.builds(Signal, values, st.none() | values, st.none() | values)
    return st.dictionaries(st.sampled_from(["cpu", "gpu", "samples_per_second", "metrics.queue"]), one)


@st.composite
def looks(draw: st.DrawFn, workers: Workers) -> Observation:
    n = draw(st.integers(workers.at_least, workers.at_most).filter(workers.permits))
    speed = st.builds(Speed, st.integers(1, 32), st.floats(0.01, 100), st.integers(1, 10_000))
    past = st.none() | st.floats(0, 5000).map(lambda s: NOW - s)
    claim = st.builds(Claim, st.sampled_from("abc"), st.integers(1, 8), st.integers(0, 9), st.floats(0, 100))
    capacity = st.builds(
        Capacity,
        st.just(NOW),
        st.none() | st.integers(0, 40),
        st.just("nodes"),
        claims=st.lists(claim, max_size=3).map(tuple),
    )
    return Observation(
        at=NOW,
        workers=n,
        opened_at=NOW - draw(st.floats(0, 1e5)),
        step=draw(st.integers(0, 1000)),
        total_steps=draw(st.none() | st.integers(0, 100_000)),
        signals=draw(signals()),
        speeds=tuple(draw(st.lists(speed, max_size=4))),
        learnt=tuple(draw(st.lists(speed, max_size=2))),
        cost_seconds=draw(st.floats(0, 1000)),
        capacity=draw(st.none() | capacity),
        share=draw(st.none() | st.builds(Share, st.integers(0, 40), st.just("fair"))),
        used_gpu_hours=draw(st.floats(0, 200)),
        changed_at=NOW - draw(st.floats(0, 5000)),
        failed_at=draw(past),
        asked_at=draw(past),
        busy=draw(st.none() | st.just("a step is under way")),
        too_many=tuple(draw(st.lists(st.integers(1, 32), max_size=3))),
    )


cases = workers_of().flatmap(lambda w: st.tuples(st.just(w), policies(w), looks(w)))


@given(cases)
def test_it_stays_within_its_limits(case: tuple[Workers, ScalingPolicy, Observation]) -> None:
    workers, policy, seen = case
    decision = decide(policy, workers, seen)
    assert workers.permits(decision.workers)
    if decision.acts:
        assert decision.workers in sizes(policy, workers)
        assert decision.workers != seen.workers
        assert seen.busy is None, "two steps at once"
    else:
        assert decision.workers == seen.workers
    assert decision.reason


@given(cases)
def test_the_same_is_decided_from_what_the_journal_keeps(
    case: tuple[Workers, ScalingPolicy, Observation],
) -> None:
    workers, policy, seen = case
    again = decode(Observation, encode(seen))
    plain = decode(ScalingPolicy, encode(policy))
    assert decide(plain, workers, again) == decide(policy, workers, seen)
    decision = decide(policy, workers, seen)
    assert decode(Decision, encode(decision)) == decision


@given(cases)
def test_pauses_are_kept_except_for_what_others_need(
    case: tuple[Workers, ScalingPolicy, Observation],
) -> None:
    workers, policy, seen = case
    decision = decide(policy, workers, seen)
    if not decision.acts:
        return
    free = seen.capacity is not None and bool(seen.capacity.claims)
    if decision.workers < seen.workers and (free or seen.share is not None):
        return
    pause = policy.up_seconds if decision.workers > seen.workers else policy.down_seconds
    assert seen.at - seen.changed_at >= pause
    for since in (seen.failed_at, seen.asked_at):
        assert since is None or seen.at - since >= policy.snooze_seconds
    assert decision.workers < seen.workers or decision.workers not in seen.too_many


@given(cases)
def test_no_growth_costs_more_than_it_saves_by_its_own_figures(
    case: tuple[Workers, ScalingPolicy, Observation],
) -> None:
    workers, policy, seen = case
    policy = replace(policy, must_pay=True)
    decision = decide(policy, workers, seen)
    curve = fit(seen.speeds)
    if decision.acts and decision.workers > seen.workers and curve is not None and not seen.learnt:
        assert decision.figures["saved_seconds"] > decision.figures["cost_seconds"]
        if seen.total_steps is not None:
            left = max(0, seen.total_steps - seen.step)
            stays = left * curve.step_seconds(seen.workers)
            moves = left * curve.step_seconds(decision.workers) + seen.cost_seconds
            assert moves < stays * (1 + 1e-9)


@given(cases)
def test_a_constant_view_converges(case: tuple[Workers, ScalingPolicy, Observation]) -> None:
    """If nothing changes but the number of workers, the run comes to rest, and not by way of a circle."""
    workers, policy, seen = case
    # A load is shared by the workers, and the room of new ones is taken from what is free.
    visited: list[int] = [seen.workers]
    total = {name: one.value * seen.workers for name, one in seen.signals.items()}
    room = None if seen.capacity is None else seen.capacity.free
    first = seen
    for _ in range(40):
        decision = decide(policy, workers, replace(seen, busy=None, failed_at=None, asked_at=None))
        if not decision.acts:
            break
        visited.append(decision.workers)
        seen = replace(first, workers=decision.workers, changed_at=NOW - 1e4)
        shared = {
            name: value
            if name == "metrics.queue" and any(t.each for t in policy.load if t.signal == name)
            else value / decision.workers
            for name, value in total.items()
        }
        seen = replace(
            seen,
            signals={
                name: Signal(value, value, value) if name != "samples_per_second" else first.signals[name]
                for name, value in shared.items()
            },
            speeds=first.speeds,
        )
        if seen.capacity is not None:
            free = None if room is None else max(0, first.workers + room - decision.workers)
            seen = replace(seen, capacity=replace(seen.capacity, free=free, claims=()))
    assert len(visited) <= 12, visited


def spec_of(**policy: object) -> RunSpec:
    return RunSpec.from_dict(
        {
            "command": ["train.py"],
            "workers": {"count": 2, "min": 1, "max": 8},
            "scaling": {"policy": policy},
        }
    )


def test_three_lines_use_what_is_free_and_are_done_by_six() -> None:
    spec = spec_of(capacity={}, done_by="06:00")
    assert spec.scaling_policy is not None
    seen = Observation(
        at=NOW,
        workers=2,
        opened_at=NOW - 3600,
        step=1000,
        total_steps=100_000,
        speeds=(Speed(2, 1.0, 1000),),
        capacity=Capacity(NOW, 3, "3 by nodes"),
        changed_at=NOW - 3600,
    )
    decision = decide(spec.scaling_policy, spec.workers, seen)
    assert (decision.workers, decision.acts) == (5, True), decision
