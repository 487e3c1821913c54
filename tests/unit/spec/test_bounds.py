"""Every count has an upper bound, and says why, wherever a number comes in."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import airflow_elastic.runtime as elastic
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.drive.spec_file import read_plain
from airflow_elastic.control.runs import Run, start_run
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.elasticjob_options import ElasticJobOptions, Replicas
from airflow_elastic.engines.kube.kinds.job import JobKind
from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.engines.local.engine import LocalEngine
from airflow_elastic.launchers.horovod import HorovodOptions
from airflow_elastic.runtime import pod
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.run import Health, RestartPolicy, RunSpec, ScaleStep, Workers
from airflow_elastic.spec.validation import MOST_WORKERS

TOO_MANY = 99_999_999_999
CLASSES = {"workers": Workers, "checkpoint": CheckpointPolicy, "restart": RestartPolicy, "health": Health}


def numbers() -> list[tuple[str, str]]:
    """Every number of a specification that is no list, by the name of its part and its own."""
    found = [("", "active_deadline_seconds")]
    for part, cls in CLASSES.items():
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            alone = {hints[field.name], *typing.get_args(hints[field.name])} - {type(None)}
            if alone & {int, float} and field.name != "exit_codes":
                found.append((part, field.name))
    return found


@pytest.mark.parametrize(("part", "name"), numbers())
def test_no_number_of_a_specification_may_be_any(part: str, name: str) -> None:
    for wrong in (10**30, 10**400):
        given: dict[str, Any] = {name: wrong, **({"disk": "/mnt"} if name.startswith("disk") else {})}
        with pytest.raises(SpecError, match=r"at most [1-9][0-9]*: |a finite number$") as refused:
            RunSpec.from_dict({"command": ["t.py"], **({part: given} if part else given)})
        (problem,) = refused.value.problems
        assert problem.path == f"{part}.{name}".lstrip(".")


@pytest.mark.parametrize("name", ["count", "min", "max", "node_unit", "procs"])
def test_more_workers_than_any_cluster_has_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(SpecError, match=rf"{name}: given {TOO_MANY}; allowed: at most 10*: ") as refused:
        Workers(**{name: TOO_MANY})
    assert len(refused.value.problems) == 1


def test_the_most_are_taken() -> None:
    assert Workers(MOST_WORKERS, min=1, max=MOST_WORKERS, procs=1000).at_most == MOST_WORKERS
    assert RestartPolicy(backoff_limit=2**63 - 1).backoff_limit == 2**63 - 1, "taken to mean: no limit"


def test_a_scale_step_is_bounded() -> None:
    with pytest.raises(SpecError, match="at most 10000"):
        ScaleStep(TOO_MANY, at_step=1)
    with pytest.raises(SpecError, match="at most 9223372036854775807: it is kept in 64 bits"):
        ScaleStep(1, at_step=10**30)


def test_so_is_one_that_is_asked_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "run"))
    start_run(store, RunSpec(("t.py",)))
    with pytest.raises(SpecError, match=f"given {TOO_MANY}; allowed: an integer from 1 to 1"):
        Run(store).ask_scale(TOO_MANY, by="test")


def test_one_machine_is_not_given_the_processes_of_a_cluster() -> None:
    LocalEngine().check(RunSpec(("t.py",), workers=Workers(1, max=1000)))
    for workers, field in ((Workers(501, procs=2), "count"), (Workers(1, max=1001), "max")):
        with pytest.raises(SpecError, match=f"workers.{field}.*at most 1000 ranks with the engine local"):
            LocalEngine().check(RunSpec(("t.py",), workers=workers))


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (KubeOptions, {"image": "t:1", "ttl_seconds": TOO_MANY}),
        (ElasticJobOptions, {"image": "t:1", "restart_timeout": TOO_MANY}),
        (Replicas, {"replicas": TOO_MANY, "command": ("ps",)}),
        (Replicas, {"replicas": 1, "command": ("ps",), "restart_count": TOO_MANY}),
        (Replicas, {"replicas": 1, "command": ("ps",), "restart_timeout": TOO_MANY}),
        (HorovodOptions, {"reset_limit": TOO_MANY}),
        (HorovodOptions, {"start_timeout": TOO_MANY}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(max(value, key=str)),
)
def test_options_of_engines_and_launchers_are_bounded(options: type, given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"at most [0-9]+: .+"):
        options(**given)


def test_a_job_that_somebody_has_scaled_beyond_all_bounds_is_not_looked_at_pod_by_pod() -> None:
    """The API server takes any number of an operator's job, and of an autoscaler's."""
    owner = {"metadata": {"name": "j", "uid": "1"}, "spec": {"completions": 2**31 - 1}}
    kind = JobKind()
    assert len(read_job(kind, kind.slim(owner), [], {}).workers) == MOST_WORKERS


SESSION: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda run: run.epochs(10**30),
        "run.epochs: epochs: given 10*; allowed: at most 9223372036854775807: it is",
    ),
    (lambda run: run.epochs(-1), "run.epochs: epochs: given -1; allowed: a whole number from 0"),
    (
        lambda run: elastic.init(total_steps=10**30),
        "elastic.init: total_steps: given 10*; allowed: at most 9",
    ),
    (
        lambda run: elastic.init(total_steps=-1),
        "elastic.init: total_steps: given -1; allowed: a whole number from",
    ),
    (lambda run: elastic.init(total_steps=cast("int", 1.5)), "elastic.init: total_steps: given 1.5"),
    (
        lambda run: elastic.init(timeout=math.nan),
        "elastic.init: timeout: given nan; allowed: a finite number",
    ),
    (
        lambda run: elastic.init(timeout=math.inf),
        "elastic.init: timeout: given inf; allowed: a finite number",
    ),
    (
        lambda run: elastic.init(timeout=1e30),
        r"elastic.init: timeout: given 1e\+30; allowed: at most 9000000000: cl",
    ),
    (lambda run: elastic.init(timeout=-1.0), "elastic.init: timeout: given -1.0"),
    (lambda run: elastic.ShardedStream(["a"], iter, lanes=10**30), "lanes: given 10*; allowed: at most 9"),  # type: ignore[arg-type]
    (
        lambda run: elastic.ShardedStream(["a"], iter, lanes=cast("int", 0.5)),
        "lanes: given 0.5; allowed: a whole",
    ),  # type: ignore[arg-type]
    (lambda run: averaging(run, every=10**30), "run.average: every: given 10*; allowed: at most 9"),
    (
        lambda run: averaging(run, every=1, patience=math.inf),
        "run.average: patience: given inf; allowed: a fin",
    ),
    (
        lambda run: averaging(run, every=1, patience=1e30),
        "run.average: patience: given .*; allowed: at most 9",
    ),
]


def averaging(run: Session, **numbers: Any) -> None:
    net = torch.nn.Linear(1, 1)
    run.restore(net, torch.optim.SGD(net.parameters()))
    run.average(**numbers)


@pytest.mark.parametrize(("call", "said"), SESSION, ids=[said[:60] for _, said in SESSION])
def test_so_is_what_a_script_says(call: Callable[[Session], object], said: str) -> None:
    session = Session(RankEnvironment.read(), total_steps=None, backend=None, timeout=60.0)
    with pytest.raises(InvalidInput, match=said):
        call(session)


def test_the_most_of_these_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    run = elastic.init(total_steps=2**63 - 1, timeout=9e9)
    assert next(iter(run.epochs(2**63 - 1))) == 0
    data = torch.utils.data.TensorDataset(torch.arange(3))
    (batch,) = elastic.init().loader(
        data, global_batch=2**63 - 1, epochs=1, seed=2**64 - 1, micro_batch=2**63 - 1
    )
    assert sorted(batch[0].tolist()) == [0, 1, 2]


def test_a_sampler_that_a_script_makes_itself_is_bounded() -> None:
    for numbers in (
        {"global_batch": 10**30},
        {"global_batch": 1, "micro_batch": 10**30},
        {"global_batch": 1, "epoch": 10**30},
    ):
        with pytest.raises(ValueError, match=r"10* is too much: counts are kept in 64 bits"):
            elastic.ElasticBatches(3, **numbers)


def test_a_number_of_more_digits_than_python_writes_is_refused_too() -> None:
    with pytest.raises(SpecError, match="count: given int of thousands of digits; allowed: at most 10000"):
        Workers(10**5000)


VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    *("AIRFLOW_ELASTIC_ATTEMPT", "AIRFLOW_ELASTIC_GENERATION", "AIRFLOW_ELASTIC_PROCESSORS"),
)


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("text", ["9" * 40, "9" * 5000, "-1", "two", "", "1.5", "٣"])
def test_the_environment_of_a_rank_is_bounded(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SpecError, match=f"^{name}: given .*; allowed: "):
        RankEnvironment.read()


@pytest.mark.parametrize("name", ["ATTEMPT", "INDEX", "WORKERS_BEFORE"])
@pytest.mark.parametrize("text", ["9" * 40, "two"])
def test_the_environment_of_an_agent_is_bounded(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"RUN_URI": "/nowhere", "JOB": "j", "ATTEMPT": "1", "INDEX": "j-worker-0", "POD_IP": "::1"}
    for variable, value in {**good, name: text}.items():
        monkeypatch.setenv(f"AIRFLOW_ELASTIC_{variable}", value)
    with pytest.raises(SystemExit, match=r"^2$"):
        pod.be_pod()
    assert f"AIRFLOW_ELASTIC_{name}: given '{text}'; allowed: " in capsys.readouterr().err


def test_a_file_with_a_number_or_a_date_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(f"command: [t.py]\nworkers: {{count: {'9' * 5000}}}\n")
    with pytest.raises(InvalidInput, match=r"spec.yaml: it has a number or a date that cannot be read: "):
        read_plain(str(path))
    path.write_text("command: [t.py]\nworkers: {count: 2026-13-45}\n")
    with pytest.raises(InvalidInput, match=r"workers\.count: given '2026-13-45'"):
        RunSpec.from_dict(read_plain(str(path)))
    path.write_text("scaling: {policy: {done_by: 18:00}}\n")  # 1080 to YAML 1.1
    assert read_plain(str(path)) == {"scaling": {"policy": {"done_by": "18:00"}}}
