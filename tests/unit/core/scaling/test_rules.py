"""What each rule says, by examples and properties."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.scaling import schedule
from airflow_elastic.core.scaling.check import check
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.scaling.observe import signal
from airflow_elastic.core.scaling.throughput import best_known, fit
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.scaling.observation import (
    Capacity,
    Claim,
    Decision,
    Observation,
    Share,
    Signal,
    Speed,
)
from airflow_elastic.spec.scaling.policy import ScalingPolicy, Window

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC).timestamp()
HOUR = 3600.0


def spec_of(*, count: int = 2, min: int = 1, max: int = 8, unit: int = 1, **policy: Any) -> RunSpec:
    workers = {"count": count, "min": min, "max": max, "node_unit": unit}
    return RunSpec.from_dict({"command": ["t.py"], "workers": workers, "scaling": {"policy": policy}})


def look(workers: int = 2, **changes: Any) -> Observation:
    """A run that has trained for an hour, with 90 % of its step divided among workers."""
    defaults: dict[str, Any] = {
        "at": NOON,
        "workers": workers,
        "opened_at": NOON - HOUR,
        "step": 1000,
        "total_steps": 20_000,
        "speeds": tuple(Speed(n, 0.1 + 1.8 / n, 500) for n in (1, 2)),
        "changed_at": NOON - HOUR,
    }
    return Observation(**{**defaults, **changes})


def decided(spec: RunSpec, seen: Observation) -> Decision:
    assert spec.scaling_policy is not None
    return decide(spec.scaling_policy, spec.workers, seen)


def free(count: int | None, *claims: Claim, text: str = "by nodes") -> Capacity:
    return Capacity(NOON, count, text, claims)


# -- load --------------------------------------------------------------------------------------------------------


def level(value: float) -> Signal:
    return Signal(value, value, value)


@pytest.mark.parametrize(
    ("value", "workers"), [(0.8, 4), (0.87, 4), (0.9, 5), (1.6, 8), (0.75, 4), (0.7, 4), (0.4, 2), (0.1, 1)]
)
def test_a_load_is_brought_to_its_target(value: float, workers: int) -> None:
    """As Kubernetes' HorizontalPodAutoscaler has it: ceil(4 * value / 0.8), unless it is within a tenth."""
    spec = spec_of(load=[{"signal": "gpu", "target": 0.8}], must_pay=False)
    assert decided(spec, look(4, signals={"gpu": level(value)})).workers == workers


def test_any_signal_may_ask_for_more_and_all_must_agree_to_fewer() -> None:
    spec = spec_of(load=[{"signal": "gpu", "target": 0.8}, {"signal": "cpu", "target": 0.5}], must_pay=False)
    low, high = level(0.2), level(0.9)
    assert decided(spec, look(4, signals={"gpu": low, "cpu": high})).workers == 8
    assert decided(spec, look(4, signals={"gpu": low, "cpu": low})).workers == 2
    unknown = decided(spec, look(4, signals={"gpu": low}))
    assert (unknown.workers, unknown.acts) == (4, False)
    assert "cpu is not reported yet" in unknown.reason


def test_a_queue_is_shared_and_a_band_leaves_alone_what_is_within() -> None:
    queue = spec_of(load=[{"signal": "metrics.queue", "target": 100, "each": True}], must_pay=False)
    assert decided(queue, look(2, signals={"metrics.queue": level(650)})).workers == 7
    band = spec_of(load=[{"signal": "step_seconds", "low": 0.5, "high": 1.0}], must_pay=False)
    for value, workers in ((0.6, 4), (1.0, 4), (1.5, 6), (0.25, 2)):
        assert decided(band, look(4, signals={"step_seconds": level(value)})).workers == workers
    rate = spec_of(load=[{"signal": "samples_per_second", "target": 100}], must_pay=False)
    assert decided(rate, look(2, signals={"samples_per_second": level(50)})).workers == 4


def test_noise_of_a_fifth_does_not_make_it_swing() -> None:
    """A day of looks at a load that is on target, but for noise: at most one step, and none of them back."""
    spec = spec_of(count=4, load=[{"signal": "gpu", "target": 0.8}], must_pay=False)
    policy = spec.scaling_policy
    assert policy is not None
    for seed in range(3):
        luck, workers, samples, steps = random.Random(seed), 4, [], 0
        at, changed = NOON, NOON - HOUR
        while at < NOON + 24 * HOUR:
            at += 15.0
            samples.append((at, 0.8 * 4 / workers * luck.uniform(0.8, 1.2)))
            samples = samples[-40:]
            found = signal("gpu", samples, policy, at)
            seen = look(workers, at=at, changed_at=changed, signals={"gpu": found} if found else {})
            decision = decided(spec, seen)
            if decision.acts:
                workers, changed, samples, steps = decision.workers, at, [], steps + 1
        assert steps <= 1, f"seed {seed}"


# -- capacity ----------------------------------------------------------------------------------------------------


def test_it_grows_into_what_is_free_and_leaves_some() -> None:
    assert decided(spec_of(capacity={}), look(2, capacity=free(3))).workers == 5
    assert decided(spec_of(capacity={"leave_free": 1}), look(2, capacity=free(3))).workers == 4
    assert decided(spec_of(capacity={}, min=2, max=8, unit=2), look(2, capacity=free(3))).workers == 4
    assert decided(spec_of(capacity={}, sizes=[1, 2, 4, 8]), look(2, capacity=free(5))).workers == 4
    none = decided(spec_of(capacity={}), look(2, capacity=free(None, text="no right to list nodes")))
    assert not none.acts
    assert "no right to list nodes" in none.reason


def test_what_others_need_is_given_back_at_once_and_only_if_it_helps() -> None:
    spec = spec_of(capacity={})
    recent = {"changed_at": NOON - 1, "failed_at": NOON - 1}
    claims = free(0, Claim("pod/urgent", 2, priority=10, seconds=40))
    gives = decided(spec, look(5, capacity=claims, **recent))
    assert (gives.workers, gives.acts, gives.rule) == (3, True, "capacity")
    assert "pod/urgent" in gives.reason
    too_large = free(0, Claim("pod/huge", 5, priority=10, seconds=40))
    assert not decided(spec, look(5, capacity=too_large, **recent)).acts
    early = free(0, Claim("pod/new", 1, priority=10, seconds=5))
    assert not decided(spec, look(5, capacity=early, **recent)).acts
    assert not decided(spec_of(capacity={"give_back": False}), look(5, capacity=claims, **recent)).acts


def test_a_smaller_share_is_obeyed_at_once_and_a_larger_one_after_the_pauses() -> None:
    spec = spec_of(capacity={})
    less = Share(2, "2 of 8 by fairness")
    assert decided(spec, look(4, share=less, changed_at=NOON)).workers == 2
    more = Share(6, "6 of 8 by fairness")
    assert not decided(spec, look(4, share=more, changed_at=NOON, capacity=free(8))).acts
    assert decided(spec, look(4, share=more, capacity=free(8))).workers == 6


# -- worth -------------------------------------------------------------------------------------------------------


def test_growing_stops_where_it_no_longer_pays() -> None:
    """Of this curve 4 workers have an efficient share, 8 have not."""
    speeds = tuple(Speed(n, 0.5 + 2.0 / n, 500) for n in (1, 2, 4))
    spec = spec_of(worth={"efficiency": 0.4}, sizes=[1, 2, 4, 8])
    grown = decided(spec, look(2, speeds=speeds))
    assert grown.workers == 4, grown
    stays = decided(spec, look(4, speeds=speeds))
    assert (stays.workers, stays.acts) == (4, False)
    assert "adds" in stays.reason


def test_a_run_that_is_slower_with_more_workers_goes_back() -> None:
    speeds = (Speed(2, 1.0, 500), Speed(4, 1.4, 500))
    back = decided(spec_of(worth={}), look(4, speeds=speeds))
    assert (back.workers, back.acts) == (2, True) or back.workers == 1


def test_an_unmeasured_size_is_measured_before_the_next_step() -> None:
    waits = decided(spec_of(worth={}, capacity={}), look(4, capacity=free(4)))
    assert not waits.acts
    assert "not measured yet" in waits.reason


def test_noise_scale_makes_large_batches_worth_less() -> None:
    """The script makes its batch larger with more workers: a step takes as long, and its gradient says little more."""
    speeds = tuple(Speed(n, 1.0, 500) for n in (1, 2))
    spec = spec_of(worth={"efficiency": 0.5, "noise_scale": True})
    rate = level(200.0)  # samples per second of two workers
    useful = look(
        2, speeds=speeds, signals={"samples_per_second": rate, "metrics.gradient_noise_scale": level(1e5)}
    )
    useless = look(
        2, speeds=speeds, signals={"samples_per_second": rate, "metrics.gradient_noise_scale": level(10)}
    )
    assert decided(replace_must_pay(spec), useful).workers == 4
    assert decided(replace_must_pay(spec), useless).workers <= 2


def replace_must_pay(spec: RunSpec) -> RunSpec:
    assert spec.scaling_policy is not None
    return replace(spec, scaling_policy=replace(spec.scaling_policy, must_pay=False))


# -- schedule ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hour", "is_open"), [(12, False), (19, False), (20, True), (23, True), (5, True), (6, False)]
)
def test_a_window_goes_over_midnight(hour: int, is_open: bool) -> None:
    night = Window("0 20 * * *", "0 6 * * *", workers=8)
    at = datetime(2027, 3, 2, hour, 0, 30, tzinfo=UTC).timestamp()
    assert schedule.is_open(night, "UTC", at) is is_open


@given(st.integers(0, 364 * 24 * 60))
def test_a_window_is_open_as_the_clock_of_its_zone_says(minutes: int) -> None:
    """Also on the days on which clocks are changed."""
    from zoneinfo import ZoneInfo

    at = datetime(2027, 1, 1, tzinfo=UTC).timestamp() + 60 * minutes + 30
    local = datetime.fromtimestamp(at, tz=ZoneInfo("Europe/Berlin"))
    assert schedule.is_open(Window("0 20 * * *", "0 6 * * *", 8), "Europe/Berlin", at) is (
        local.hour >= 20 or local.hour < 6
    )


def test_the_fewest_workers_that_make_it_in_time() -> None:
    """19,000 steps: with 2 workers 5 h 17 min, with 4 2 h 54 min, with 8 1 h 43 min."""
    by_six = decided(spec_of(done_by="18:00"), look(2))
    assert not by_six.acts, by_six
    assert "before 2027-03-01 18:00" in by_six.reason
    by_four = decided(spec_of(done_by="16:00"), look(2))
    assert (by_four.workers, by_four.acts, by_four.rule) == (4, True, "deadline")
    by_one = decided(spec_of(done_by="13:00"), look(2))
    assert by_one.workers == 8
    assert "no number of workers keeps the margin" in by_one.reason
    tomorrow = decided(spec_of(done_by="11:59", max=4), look(4, opened_at=NOON - 10))
    assert tomorrow.workers < 4


def test_what_a_budget_has_left_decides_how_many_go_on() -> None:
    spec = spec_of(gpu_hours=20.0, must_pay=False)
    plenty = decided(spec, look(8, used_gpu_hours=1.0))
    assert not plenty.acts
    short = decided(spec, look(8, used_gpu_hours=9.0))
    assert (short.rule, short.acts) == ("budget", True)
    assert short.workers < 8
    unknown = decided(spec, look(8, used_gpu_hours=18.5, total_steps=None))
    assert unknown.workers == 1


# -- guards ------------------------------------------------------------------------------------------------------


def test_guards_say_what_was_wanted() -> None:
    spec = spec_of(capacity={})
    for changes, rule in (
        ({"changed_at": NOON - 10}, "cooldown"),
        ({"failed_at": NOON - 10}, "snooze"),
        ({"asked_at": NOON - 10}, "snooze"),
        ({"total_steps": 1010}, "payback"),
        ({"busy": "workers are waited for"}, "busy"),
    ):
        kept = decided(spec, look(2, capacity=free(3), **changes))
        assert (kept.acts, kept.rule, kept.workers) == (False, rule, 2), kept
        assert rule == "busy" or (kept.wanted == 5 and "wanted: 5 workers" in kept.reason)


def test_a_size_that_did_not_work_is_avoided_and_a_step_without_its_workers_undone() -> None:
    spec = spec_of(capacity={})
    assert decided(spec, look(2, capacity=free(3), too_many=(5,))).workers == 4
    held = look(5, busy="workers are waited for", held=2, held_seconds=130.0)
    back = decided(spec, held)
    assert (back.workers, back.acts, back.rule) == (3, True, "fallback")


# -- speeds ------------------------------------------------------------------------------------------------------


@given(
    st.floats(0, 10),
    st.floats(0.01, 100),
    st.floats(0, 1),
    st.lists(st.integers(1, 64), min_size=3, unique=True),
)
def test_a_curve_goes_through_what_follows_it(
    fixed: float, divided: float, per_worker: float, sizes: list[int]
) -> None:
    truth = lambda n: fixed + divided / n + per_worker * (n - 1)  # noqa: E731
    curve = fit(Speed(n, truth(n), 100) for n in sizes)
    assert curve is not None
    for n in sizes:
        assert curve.step_seconds(n) == pytest.approx(truth(n), rel=0.01)


def test_others_measurements_are_scaled_to_this_machine() -> None:
    known = best_known([Speed(2, 1.0, 10)], [Speed(2, 2.0, 10), Speed(4, 1.2, 10)])
    assert known == (Speed(2, 1.0, 10), Speed(4, pytest.approx(0.6), 10))


# -- checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"capacity": {}, "timezone": "Mars/Base"}, "scaling.policy.timezone"),
        (
            {"windows": [{"start": "0 25 * * *", "end": "0 6 * * *", "workers": 2}]},
            "scaling.policy.windows.0.start",
        ),
        (
            {"windows": [{"start": "0 20 30 2 *", "end": "0 6 * * *", "workers": 2}]},
            "scaling.policy.windows.0.start",
        ),
        ({"done_by": "2020-01-01T00:00"}, "scaling.policy.done_by"),
        ({"done_by": "2027-02-31T00:00"}, "scaling.policy.done_by"),
    ],
)
def test_a_policy_that_can_never_be_carried_out_is_refused(policy: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        check(spec_of(**policy), NOON)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_a_policy_without_a_rule_or_a_choice_is_refused() -> None:
    for bad in (
        lambda: spec_of(),
        lambda: spec_of(capacity={}, count=2, min=2, max=2),
        lambda: spec_of(capacity={}, sizes=[1, 9]),
        lambda: spec_of(capacity={"leave_free": 8}),
        lambda: spec_of(load=[{"signal": "gpu"}]),
        lambda: spec_of(load=[{"signal": "unheard", "target": 1}]),
        lambda: spec_of(windows=[{"start": "0 1 * * *", "end": "0 2 * * *", "workers": 9}]),
    ):
        with pytest.raises(SpecError):
            bad()
    assert isinstance(spec_of(capacity={}).scaling_policy, ScalingPolicy)


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        (
            {"capacity": {}},
            "scaling.capacity: there is no such field; rules are fields of scaling.policy, and planned steps are in "
            "scaling.steps",
        ),
        ("auto", "scaling: given 'auto'; allowed: a mapping with `policy`, or a list of planned steps"),
        (
            [{"policy": {"capacity": {}}}, {"workers": 4, "at_step": 3}],
            "scaling.0.policy: this is a list of planned steps; for both write a mapping with `policy` and `steps`",
        ),
        ({"policy": {"capcity": {}}}, "scaling.policy.capcity: there is no such field; "),
        (
            {"policy": {"capacity": {}}, "steps": [{"workers": 40, "at_step": 3}]},
            "scaling.steps.0.workers: given 40;",
        ),
        (
            {"policy": {"load": [{"signal": "cpu", "target": 80}]}},
            "scaling.policy.load.0.target: given 80.0; allowed: a number above 0 and at most 1: for 80 % give 0.8",
        ),
        (
            {"policy": {"load": [{"signal": "cpu", "low": 0.5, "high": 70}]}},
            "scaling.policy.load.0.high: given 70.0; allowed: a number above 0 and at most 1: for 70 % give 0.7",
        ),
        (
            {"policy": {"load": [{"signal": "cpu"}]}},
            "scaling.policy.load.0.target: give either target, or both low and high",
        ),
        (
            {"policy": {"gpu_hours": 0}},
            "scaling.policy.gpu_hours: given 0.0; allowed: a finite number greater than 0",
        ),
        (
            {"policy": {"windows": [{"start": "0 20 * * *", "end": "0 20 * * *", "workers": 4}]}},
            "scaling.policy.windows.0.end: given '0 20 * * *'; allowed: another moment than start",
        ),
        (
            {"policy": {}},
            "scaling.policy: it has no rule; give at least one, such as capacity, load or done_by",
        ),
    ],
)
def test_an_error_has_the_words_of_the_specification(scaling: object, said: str) -> None:
    workers = {"count": 2, "min": 1, "max": 8}
    with pytest.raises(SpecError) as refused:
        RunSpec.from_dict({"command": ["t.py"], "workers": workers, "scaling": scaling})
    assert str(refused.value).startswith(said)
    assert len(refused.value.problems) == 1


def test_a_policy_that_has_nothing_to_choose_is_told_what_to_change() -> None:
    with pytest.raises(
        SpecError, match=r"scaling\.policy: workers\.min and workers\.max are both 2, .* raise workers\.max"
    ):
        spec_of(capacity={}, count=2, min=2, max=2)


def test_a_run_that_is_early_enough_says_that_there_is_no_room_to_grow() -> None:
    spec = spec_of(capacity={}, done_by="06:00")
    found = decided(spec, look(1, capacity=Capacity(NOON, 0, "2 processors")))
    assert (found.rule, found.reason) == ("capacity", "there is room for 0 more")
