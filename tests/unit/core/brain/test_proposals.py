"""Proposals from facts, and specifications with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.core.brain.amounts import amount, memory, processors
from airflow_elastic.core.brain.evidence import speeds_of
from airflow_elastic.core.brain.facts import Facts, Timing
from airflow_elastic.core.brain.kind import accelerators, batch_of, kind_of, training_of
from airflow_elastic.core.brain.learnt import with_learnt
from airflow_elastic.core.brain.proposals import LONGEST_LIMIT, SHORTEST_LIMIT, proposals
from airflow_elastic.core.brain.use import Use, quantile
from airflow_elastic.core.machine import create
from airflow_elastic.core.status_document import document
from airflow_elastic.spec.brain.proposal import Proposal
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.events import RunCreated
from airflow_elastic.spec.run import Health, RunSpec
from airflow_elastic.spec.scaling.observation import Speed
from airflow_elastic.spec.scaling.policy import ScalingPolicy, WorthRule
from airflow_elastic.spec.scaling.workers import Workers
from tests.support.builders import spec

GIB = 1024.0**3


def trains(**changes: Any) -> RunSpec:
    workers = Workers(2, min=1, max=16, resources={"cpu": "4", "memory": "8Gi"})
    return spec(**{"command": ("train.py", "--batch-size", "32"), "workers": workers, **changes})


def fact(run: RunSpec, number: int = 0, **changes: Any) -> Facts:
    """A run of this specification that has told little; changes of its timing by their own names."""
    timing = {name: changes.pop(name) for name in list(changes) if name in Timing.__dataclass_fields__}
    plain = Facts(
        uri=f"/runs/{number}",
        name=run.name,
        kind=kind_of(run),
        training=training_of(run),
        engine=run.engine,
        launcher=run.launcher,
        owner=None,
        outcome="succeeded",
        created_at=float(number),
        ended_at=float(number) + 100,
        wall_seconds=100.0,
        goodput=0.9,
        steps=100,
        total_steps=100,
        workers=2,
        procs=1,
        gpu_hours=1.0,
        samples_per_second=100.0,
        entries=5,
        batch=batch_of(run.command),
        resources=dict(run.workers.resources),
        timing=Timing(**timing),
    )
    return replace(plain, **changes)


def proposed(run: RunSpec, *known: Facts) -> dict[str, Proposal]:
    return {one.field: one for one in proposals(run, known)}


def speeds(*pairs: tuple[int, float]) -> tuple[Speed, ...]:
    return tuple(Speed(workers, seconds, 100) for workers, seconds in pairs)


def test_nothing_is_proposed_without_evidence() -> None:
    assert proposals(trains(), ()) == ()
    assert proposals(trains(), [fact(trains())]) == ()
    assert proposals(trains(), [replace(fact(trains(), longest_start_seconds=1000.0), kind="another")]) == ()


def test_workers_as_long_as_each_adds_enough() -> None:
    run = trains()
    known = fact(run, speeds=speeds((1, 1.1), (2, 0.6), (4, 0.35), (8, 0.225)))
    one = proposed(run, known)["workers.count"]
    assert (one.value, one.now, one.runs) == (10, 2, 1)
    assert one.figures["step_seconds"] == pytest.approx(0.2, rel=0.05)
    assert "with 10 a step takes 0.2 s, with 2 0.6 s" in one.reason
    steep = replace(run, scaling_policy=ScalingPolicy(worth=WorthRule(0.9)))
    assert proposed(steep, known)["workers.count"].value < 10
    assert "workers.count" not in proposed(run, fact(run, speeds=speeds((2, 0.6))))
    assert "workers.count" not in proposed(replace(run, workers=Workers(2)), fact(run, speeds=known.speeds))


def test_runs_with_other_arguments_give_the_shape_of_the_curve() -> None:
    run, other = trains(), trains(command=("train.py", "--batch-size", "64"))
    known = [
        fact(other, 0, speeds=speeds((1, 2.0), (4, 0.5))),
        fact(other, 1, speeds=speeds((1, 4.0), (2, 2.0))),
    ]
    found, runs = speeds_of(run, known)
    assert runs == 2
    assert {one.workers: round(one.step_seconds, 3) for one in found} == {1: 4.0, 2: 2.0, 4: 1.0}
    mine = fact(run, 2, speeds=speeds((1, 3.0)))
    assert speeds_of(run, [*known, mine]) == (speeds((1, 3.0)), 1)


def test_resources_by_what_workers_used_with_a_margin() -> None:
    run = trains()
    used = (Use("cpu", 100, 1.0, 2.0, 9.0), Use("memory_bytes", 100, GIB, 2 * GIB, 4 * GIB))
    found = proposed(run, *(fact(run, i, uses=used) for i in range(3)))
    cpu, ram = found["workers.resources.cpu"], found["workers.resources.memory"]
    assert (cpu.value, cpu.now, cpu.runs) == ("2400m", "4", 3)
    assert (ram.value, ram.now) == ("4928Mi", "8Gi")  # 4 GiB and a fifth
    assert "4.29 GB" in ram.reason
    changed, taken = with_learnt(run, found.values())
    assert changed.workers.resources == {"cpu": "2400m", "memory": "4928Mi"}
    assert len(taken) == 2
    unlimited = replace(run, workers=Workers(2))
    free = proposals(unlimited, [replace(fact(run, uses=used), kind=kind_of(unlimited))])
    assert {one.field for one in free} == {cpu.field, ram.field}
    assert with_learnt(unlimited, free) == (unlimited, ())  # shown, but a limit is the user's to set


def test_a_run_that_ran_out_of_memory_asks_for_more() -> None:
    run = trains()
    used = (Use("memory_bytes", 9, GIB, GIB, 7.9 * GIB),)
    one = proposed(run, fact(run, uses=used, out_of_memory=2))["workers.resources.memory"]
    assert one.value == "12Gi"
    assert "ran out of memory" in one.reason


def test_the_interval_of_saves_by_their_cost_and_the_failures_of_workers() -> None:
    run = trains()
    known = fact(run, saves=10, save_seconds=2.0, written_seconds=3.0, worker_hours=200.0, failures=9)
    one = proposed(run, known)["checkpoint.every_seconds"]
    # 2 workers for 100 hours with 9 failures, and the assumption of 6 hours: one in 10.6 hours; Young's root
    assert one.value == pytest.approx((2 * 2.0 * 10.6 * 3600) ** 0.5, abs=1)
    assert one.now == 300.0
    wide = replace(run, workers=replace(run.workers, count=8))
    assert (
        proposed(wide, known).get("checkpoint.every_seconds", one).value < one.value
    )  # more workers fail more often
    for policy in (CheckpointPolicy(auto_interval=True), CheckpointPolicy(every_steps=5)):
        assert "checkpoint.every_seconds" not in proposed(replace(run, checkpoint=policy), known)


def test_limits_are_raised_after_one_run_and_lowered_after_two() -> None:
    run = trains()
    slow = fact(run, longest_start_seconds=2000.0, pause_seconds=20.0)
    found = proposed(run, slow)
    assert found["health.start_seconds"].value == 6600.0
    assert "health.no_progress_seconds" not in found
    both = proposed(run, slow, fact(run, 1, pause_seconds=30.0))
    assert (both["health.no_progress_seconds"].value, both["health.no_progress_seconds"].runs) == (150.0, 2)
    changed, taken = with_learnt(run, both.values())
    assert changed.health == Health(start_seconds=6600.0, no_progress_seconds=150.0)
    assert len(taken) == 2


def test_a_larger_batch_is_only_a_hint() -> None:
    run = trains()
    wide = trains(command=("train.py", "--batch-size", "64"))
    one = proposed(run, fact(run, samples_per_second=100.0), fact(wide, 1, samples_per_second=150.0))
    hint = one["command --batch-size"]
    assert (hint.value, hint.now, hint.hint) == (64, 32, True)
    assert with_learnt(run, one.values()) == (run, ())


def test_mode_single_counts_runs_of_the_same_name_only() -> None:
    run = trains(brain="single", working_dir="/home/ada")
    other = fact(replace(run, name="other"), 1, longest_start_seconds=2000.0)
    assert proposals(run, [other]) == ()
    assert proposals(replace(run, brain="cluster"), [other]) != ()


# -- which runs are alike ----------------------------------------------------------------------------------------------


def test_what_makes_runs_alike() -> None:
    run = trains(working_dir="/home/ada")
    alike = [
        replace(run, name="another"),
        replace(run, command=("train.py", "--lr", "1")),
        replace(run, workers=Workers(7, resources={"cpu": "1"})),
        replace(run, command=("/home/ada/train.py",)),
    ]
    assert {kind_of(one) for one in alike} <= {kind_of(run), kind_of(alike[-1])}
    different = [
        replace(run, command=("other.py",)),
        replace(run, engine="job"),
        replace(run, launcher="python"),
        replace(run, working_dir="/home/eve"),
        replace(run, workers=Workers(procs=2)),
        replace(run, workers=Workers(resources={"nvidia.com/gpu": "1"})),
    ]
    assert kind_of(run) not in {kind_of(one) for one in different}
    assert training_of(run) != training_of(alike[1])


def test_a_new_tag_of_an_image_and_a_new_version_of_a_bundle_are_alike() -> None:
    first = trains(engine="job", engine_options={"image": "host:5000/ada/mnist:1"})
    again = trains(engine="job", engine_options={"image": "host:5000/ada/mnist:2"})
    digest = trains(engine="job", engine_options={"image": "host:5000/ada/mnist@sha256:abc"})
    assert kind_of(first) == kind_of(again) == kind_of(digest)
    bundles = [trains(source_root=f"/b/{v}", command=(f"/b/{v}/train.py",)) for v in (1, 2)]
    assert kind_of(bundles[0]) == kind_of(bundles[1])
    assert kind_of(bundles[0]) != kind_of(replace(bundles[0], name="another"))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("t.py", "--batch-size", "32"), ("--batch-size", 32)),
        (("t.py", "--per_device_train_batch_size=8", "x"), ("--per_device_train_batch_size", 8)),
        (("t.py", "--micro-batch-size", "auto"), None),
        (("t.py", "--batch-size"), None),
        (("t.py", "--lr", "3"), None),
    ],
)
def test_the_batch_of_a_command(words: tuple[str, ...], found: tuple[str, int] | None) -> None:
    assert batch_of(words) == found


def test_devices_of_a_worker() -> None:
    assert accelerators(trains(workers=Workers(procs=4))) == 4
    assert accelerators(trains(workers=Workers(procs=4, resources={"nvidia.com/gpu": "8"}))) == 8


# -- properties --------------------------------------------------------------------------------------------------------

seconds = st.none() | st.floats(0.0, 1e7)
counts = st.integers(0, 1000)


@st.composite
def facts(draw: st.DrawFn, number: int) -> Facts:
    workers = draw(st.lists(st.integers(1, 64), unique=True, max_size=4))
    used = draw(
        st.lists(
            st.tuples(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12)), min_size=2, max_size=2
        )
    )
    uses = tuple(
        Use(name, 1, *sorted(values)) for name, values in zip(("cpu", "memory_bytes"), used, strict=True)
    )
    saves = draw(counts)
    return fact(
        draw(st.sampled_from([trains(), trains(command=("train.py", "--batch-size", "64"))])),
        number,
        speeds=tuple(Speed(n, draw(st.floats(1e-6, 1e6)), draw(st.integers(1, 10**6))) for n in workers),
        uses=draw(st.sampled_from([(), uses])),
        saves=saves,
        save_seconds=draw(st.floats(0.0, 1e5)) if saves else None,
        written_seconds=draw(seconds),
        longest_start_seconds=draw(seconds),
        pause_seconds=draw(seconds),
        worker_hours=draw(st.floats(0.0, 1e6)),
        failures=draw(counts),
        out_of_memory=draw(st.integers(0, 2)),
        samples_per_second=draw(st.floats(0.0, 1e9)),
    )


@given(st.data())
def test_proposals_are_bounded_and_the_same_each_time(data: st.DataObject) -> None:
    known = [data.draw(facts(i)) for i in range(data.draw(st.integers(0, 5)))]
    run = trains()
    found = proposals(run, known)
    assert found == proposals(run, list(reversed(known)))
    for one in found:
        assert 1 <= one.runs <= len(known)
        assert one.reason
        assert one.value != one.now
        if one.field == "workers.count":
            assert run.workers.permits(one.value)
        elif one.field == "workers.resources.memory":
            assert 2 * GIB <= (amount(one.value) or 0) <= 32 * GIB + 64 * 1024**2
        elif one.field == "workers.resources.cpu":
            assert 1.0 <= (amount(one.value) or 0) <= 16.0 + 0.1
        elif one.field == "checkpoint.every_seconds":
            assert 10.0 <= one.value <= 3600.0
        elif one.field.startswith("health."):
            assert SHORTEST_LIMIT <= one.value <= LONGEST_LIMIT
    changed, taken = with_learnt(run, found)
    assert with_learnt(changed, taken) == (changed, taken)  # a run that is found again has the same values
    assert all(not one.hint for one in taken)


@given(st.floats(1e-3, 1e6))
def test_amounts_are_never_rounded_down(value: float) -> None:
    cpu, ram = amount(processors(value)), amount(memory(value * 1e6))
    assert cpu is not None
    assert ram is not None
    assert value - 1e-6 <= cpu <= max(0.1, value + 0.1 + 1e-6)
    assert value * 1e6 - 1 <= ram <= value * 1e6 + 64 * 1024**2 + 1


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.1, 10)), min_size=1), st.floats(0, 1))
def test_a_quantile_is_one_of_the_values(values: list[tuple[float, float]], part: float) -> None:
    found = quantile(values, part)
    assert found in [value for value, _ in values]
    below = sum(weight for value, weight in values if value <= found)
    assert below >= part * sum(weight for _, weight in values) * (1 - 1e-9)


def test_the_status_document_says_which_proposals_the_run_has_taken() -> None:
    made = (
        Proposal("workers.count", 4, "it is faster", 3, 2),
        Proposal("workers.resources.cpu", "2", "used", 3),
    )
    begun = RunCreated(0.0, RunSpec(("train.py",), workers=Workers(4, 1, 8)), True, proposals=made)
    shown = document("uri", create(begun), None, 1.0)["proposals"]
    assert [(one["field"], one["runs"], one["taken"]) for one in shown] == [
        ("workers.count", 3, True),
        ("workers.resources.cpu", 3, False),
    ]
