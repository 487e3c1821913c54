"""Every bad value is refused, with the field's path, what was given, and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.comparison import differences, only_workers_differ
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.run import (
    Health,
    RestartPolicy,
    RunSpec,
    ScaleStep,
    SecretRef,
    Workers,
)

GOOD: dict[str, Any] = {"command": ["train.py"]}


@pytest.mark.parametrize(
    ("bad", "path", "allowed"),
    [
        ({"command": []}, "command", "a script and its arguments"),
        ({"command": "train.py"}, "command", "a list"),
        ({"command": ["", "train.py"]}, "command", "the first is not empty"),
        ({"command": [1]}, "command.0", "a string"),
        ({"script": " \n"}, "script", "the text of a Python script"),
        ({"script": "\ud800"}, "script", "the text of a Python script"),
        ({"script": "é" * 140_000}, "script", "at most 262144 bytes"),
        ({"script": 1}, "script", "a string"),
        ({"script": "a = 1", "command": ["-m", "a"]}, "command", "the name of the file that workers write"),
        ({"script": "a = 1", "command": ["a/b.py"]}, "command", "the name of the file that workers write"),
        ({"script": "a = 1", "command": [".."]}, "command", "the name of the file that workers write"),
        ({"name": ""}, "name", "1 to 200 letters"),
        ({"name": "../up"}, "name", "1 to 200 letters"),
        ({"name": "x" * 201}, "name", "1 to 200 letters"),
        ({"launcher": ""}, "launcher", "the name of a launcher"),
        ({"engine": ""}, "engine", "the name of an engine"),
        ({"workers": {"count": 0}}, "count", "an integer, at least 1"),
        ({"workers": {"count": 2.5}}, "workers.count", "an integer"),
        ({"workers": {"count": True}}, "workers.count", "an integer"),
        ({"workers": {"count": "2"}}, "workers.count", "an integer"),
        ({"workers": {"count": 2, "min": 3}}, "min", "at most workers.count, which is 2"),
        ({"workers": {"count": 2, "max": 1}}, "max", "at least workers.count, which is 2"),
        ({"workers": {"count": 3, "node_unit": 2}}, "count", "a multiple of workers.node_unit, 2"),
        ({"workers": {"procs": 0}}, "procs", "at least 1"),
        ({"workers": {"resources": {"cpu": 4}}}, "workers.resources.cpu", "a string"),
        ({"checkpoint": {"every_steps": 0}}, "every_steps", "at least 1"),
        ({"checkpoint": {"every_seconds": -1}}, "every_seconds", "greater than 0"),
        ({"checkpoint": {"keep_last": 0}}, "keep_last", "at least 1"),
        ({"restart": {"policy": "Sometimes"}}, "policy", "one of Never, OnFailure, Always, ExitCode"),
        ({"restart": {"exit_codes": [0]}}, "exit_codes.0", "an integer from 1 to 255"),
        ({"restart": {"backoff_limit": -1}}, "backoff_limit", "at least 0"),
        (
            {"restart": {"policy": "Always", "backoff_limit": 0}},
            "restart.policy",
            "a restart.backoff_limit or",
        ),
        ({"health": {"no_progress_seconds": 0}}, "no_progress_seconds", "greater than 0"),
        ({"health": {"unattended_seconds": 9}}, "unattended_seconds", "at least 10 seconds"),
        ({"health": {"grace_seconds": float("inf")}}, "health.grace_seconds", "a finite number"),
        ({"active_deadline_seconds": 0}, "active_deadline_seconds", "greater than 0"),
        ({"cleanup": "none"}, "cleanup", "one of None, All, Unfinished"),
        ({"scaling": [{"workers": 2}]}, "at_step", "exactly one of at_step and after_seconds"),
        ({"scaling": [{"workers": 9, "at_step": 1}]}, "scaling.0.workers", "an integer from 1 to 1"),
        ({"env": {"A B": "x"}}, "env.A B", "the name of an environment variable"),
        ({"env": {"AIRFLOW_ELASTIC_RUN_URI": "x"}}, "env.AIRFLOW_ELASTIC_RUN_URI", "our own"),
        ({"env": {"A": 1}}, "env.A", "a string"),
        ({"secrets": [{"name": "T", "source": "vault", "key": "k"}]}, "source", "one of env, file"),
        ({"secrets": [{"name": "T", "source": "env"}]}, "secrets.0.key", "this field is required"),
        (
            {"env": {"T": "x"}, "secrets": [{"name": "T", "source": "env", "key": "k"}]},
            "secrets.0.name",
            "env does not set",
        ),
        ({"wrokers": {}}, "wrokers", "did you mean workers?"),
        ({"workers": [2]}, "workers", "a mapping with the fields count"),
        ({"command": None}, "command", "a list"),
    ],
)
def test_refusals(bad: dict[str, Any], path: str, allowed: str) -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.from_dict(GOOD | bad)
    (problem,) = error.value.problems
    assert problem.path.split(".")[-path.count(".") - 1 :] == path.split(".")
    assert allowed in problem.allowed


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_mapping_at_all(data: Any) -> None:
    with pytest.raises(SpecError, match="a mapping with the fields command"):
        RunSpec.from_dict(data)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.from_dict({"workers": {"count": "x", "min": []}, "nmae": "a", "restart": {"policy": "x"}})
    assert {p.path for p in error.value.problems} == {
        "workers.count",
        "workers.min",
        "nmae",
        "command",
        "restart.policy",
    }


def test_wrong_types_hide_no_wrong_values() -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.from_dict(
            {
                "checkpoint": {"every_steps": 1.5, "every_seconds": 0},
                "workers": {"count": "x", "min": 5, "max": 2, "procs": 0},
                "scaling": [{"workers": 9, "at_step": 1}],
                "cleanup": "Some",
                "secrets": [{"source": "kubernetes"}],
            }
        )
    # What depends on a value that could not be read is left out: `min`, and the workers of the scale step.
    assert {p.path for p in error.value.problems} == {
        "command",
        "workers.count",
        "workers.procs",
        "checkpoint.every_steps",
        "checkpoint.every_seconds",
        "secrets.0.name",
        "secrets.0.key",
        "cleanup",
    }


def test_what_is_missing_or_unknown_is_not_told_as_a_value() -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.from_dict({"workers": {"cuont": 2}})
    fields = "count, min, max, procs, node_unit, resources, gather_seconds, standby"
    assert str(error.value) == (
        "command: this field is required; "
        f"workers.cuont: there is no such field; there are {fields}; did you mean count?"
    )


def test_bounds_that_contradict_each_other_are_told_without_the_count() -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.from_dict(GOOD | {"workers": {"min": 5, "max": 2}})
    assert str(error.value) == "workers.min: given 5; allowed: at most workers.max, which is 2"


def test_a_scale_step_out_of_bounds_names_the_bound() -> None:
    with pytest.raises(SpecError, match=r"raise workers\.max for more"):
        RunSpec.from_dict(GOOD | {"scaling": [{"workers": 9, "at_step": 1}]})
    with pytest.raises(SpecError, match=r"lower workers\.min for fewer"):
        RunSpec.from_dict(GOOD | {"workers": {"count": 3}, "scaling": [{"workers": 2, "at_step": 1}]})


def test_problems_speak_of_other_fields_by_the_names_they_are_given() -> None:
    problem = Problem("workers.min", 5, "at most workers.max, which is 2, not workers.maximum")
    told = problem.renamed("--min", {"workers.max": "--max", "workers": "w"})
    assert str(told) == "--min: given 5; allowed: at most --max, which is 2, not workers.maximum"


def test_a_command_given_as_a_string_in_code_is_refused_too() -> None:
    with pytest.raises(SpecError, match=r"command: given 'train\.py'"):
        RunSpec(command="train.py")  # type: ignore[arg-type]


names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
positive = st.floats(0.001, 1e9)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    low, count, high = sorted(draw(st.tuples(*[st.integers(1, 50)] * 3)))
    unit = draw(st.integers(1, 4))
    workers = Workers(count * unit, low * unit, high * unit, procs=draw(st.integers(1, 8)), node_unit=unit)
    steps = st.builds(ScaleStep, st.just(low * unit), at_step=st.integers(1, 10**6))
    return RunSpec(
        command=tuple(draw(st.lists(st.text(min_size=1), min_size=1, max_size=4))),
        name=draw(names),
        workers=workers,
        checkpoint=draw(st.builds(CheckpointPolicy, st.none() | st.integers(1, 99), st.none() | positive)),
        restart=draw(st.builds(RestartPolicy, st.sampled_from(["Never", "OnFailure", "ExitCode"]))),
        health=draw(st.builds(Health, positive, positive, positive)),
        active_deadline_seconds=draw(st.none() | positive),
        scaling=tuple(draw(st.lists(steps, max_size=3))),
        env=draw(
            st.dictionaries(st.from_regex(r"[B-Z_][A-Z0-9_]{0,9}", fullmatch=True), st.text(), max_size=3)
        ),
        secrets=(SecretRef("A_SECRET", "env", "K"),),
    )


@given(specs())
def test_every_specification_survives_the_journal(spec: RunSpec) -> None:
    import json

    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.digest == spec.digest
    assert differences(spec, again) == []


@given(specs(), specs())
def test_the_digest_tells_specifications_apart(one: RunSpec, other: RunSpec) -> None:
    assert (one.digest == other.digest) == (one == other) == (differences(one, other) == [])


def test_differences_are_told_by_field() -> None:
    old, new = RunSpec(command=("a",)), RunSpec(command=("a",), workers=Workers(4))
    assert differences(old, new) == ["workers.count: 1 there, 4 asked for"]
    more = RunSpec(command=("a",), checkpoint=CheckpointPolicy(every_steps=5))
    assert differences(more, old) == ["checkpoint.every_steps: 5 there, left out now"]
    assert differences(old, more) == ["checkpoint.every_steps: not set there, 5 asked for"]


def test_only_another_number_of_workers_that_the_run_allows_is_a_matter_of_scaling() -> None:
    def run(*workers: int, name: str = "n") -> RunSpec:
        return RunSpec(command=("a",), name=name, workers=Workers(*workers))

    assert only_workers_differ(run(2, 1, 4), run(3, 1, 4)) == 3
    assert only_workers_differ(run(2, 1, 4), run(2, 1, 4)) is None
    assert only_workers_differ(run(2, 1, 4), run(3, 1, 5)) is None
    assert only_workers_differ(run(2, 1, 4), run(3, 1, 4, name="m")) is None
    assert only_workers_differ(run(2), run(3)) is None
