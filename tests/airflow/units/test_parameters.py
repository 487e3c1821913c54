"""What a DAG may say, and what becomes of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
)

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain.client import Memory
from airflow_elastic.control.runs import start_run
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.operators import ElasticTrainOperator
from airflow_elastic.operators.task.parameters import PATHS, build_spec, slug
from airflow_elastic.sensors import ElasticRunSensor
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.runs.surface import FakeHook, FakeTask, operator


def test_bad_values_are_refused_when_the_dag_is_parsed_each_under_its_own_name() -> None:
    with pytest.raises(SpecError) as refused:
        operator(
            workers=2,
            min_workers=3,
            checkpoint_every_seconds=timedelta(0),
            restart_policy="Sometimes",
            cleanup="Some",
            secrets=[{"name": "TOKEN", "source": "env", "keys": "X"}],
        )
    text = str(refused.value)
    for part in (
        "train.min_workers: given 3; allowed: at most workers, which is 2",
        "train.checkpoint_every_seconds: given 0.0; allowed: a finite number greater than 0",
        "train.restart_policy: given 'Sometimes'",
        "train.secrets.0.keys: there is no such field",
        "train.cleanup: given 'Some'",
    ):
        assert part in text
    with pytest.raises(SpecError, match=r"train\.command: .*No closing quotation"):
        operator(command="train.py 'x")


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (
            {"poll_interval": "5s"},
            "train.poll_interval: given '5s'; allowed: seconds, a finite number of at least",
        ),
        ({"poll_interval": 0}, "train.poll_interval: given 0"),
        ({"poll_interval": True}, "train.poll_interval: given True"),
        ({"poll_interval": None}, "train.poll_interval: given None"),
        ({"poll_interval": float("nan")}, "train.poll_interval: given nan"),
        ({"poll_interval": object()}, "train.poll_interval: given <object"),
        ({"poll_interval": timedelta(0)}, "train.poll_interval: given datetime.timedelta(0)"),
        (
            {"poll_interval": 1e30},
            "train.poll_interval: given 1e+30; allowed: at most 9000000000: clocks go no",
        ),
        ({"poll_interval": float("inf")}, "train.poll_interval: given inf"),
        (
            {"workers": 99_999_999_999},
            "train.workers: given 99999999999; allowed: at most 10000: Kubernetes runs no more pods of one job",
        ),
        ({"workers": "99999999999"}, "train.workers: given 99999999999; allowed: at most 10000: "),
        ({"max_workers": "9" * 5000}, "train.max_workers: given '999"),
        (
            {"procs_per_worker": 99_999_999_999},
            "train.procs_per_worker: given 99999999999; allowed: at most 1000: ",
        ),
        ({"node_unit": 99_999_999_999}, "train.node_unit: given 99999999999; allowed: at most 10000: "),
        ({"checkpoint_every_steps": 10**30}, "train.checkpoint_every_steps: given 1000"),
        ({"keep_checkpoints": 10**30}, "train.keep_checkpoints: given 1000"),
        ({"backoff_limit": 10**30}, "train.backoff_limit: given 1000"),
        (
            {"start_timeout": timedelta(days=10**8)},
            "train.start_timeout: given 8640000000000.0; allowed: at most 9",
        ),
        ({"grace_period": float("nan")}, "train.grace_period: given nan"),
        ({"deferrable": "no"}, "train.deferrable: given 'no'; allowed: True or False"),
        ({"elastic_conn_id": None}, "train.elastic_conn_id: given None; allowed: the id of a connection"),
        ({"elastic_conn_id": ""}, "train.elastic_conn_id: given ''"),
        ({"aws_conn_id": 3}, "train.aws_conn_id: given 3; allowed: the id of a connection, or None"),
        ({"active_deadline": "5s", "execution_timeout": timedelta(1)}, "train.active_deadline: given '5s'"),
        ({"engine": "locla"}, "train.engine: given 'locla'; allowed: one of "),
        ({"launcher": "torchrn"}, "did you mean torchrun?"),
        (
            {"run_uri": "runs/x"},
            "train.run_uri: given 'runs/x'; allowed: an absolute path, or s3://bucket/prefix: a",
        ),
        (
            {"run_uri": "ftp://x/y"},
            "train.run_uri: 'ftp://x/y' cannot be a run URI: there is no store for ftp://",
        ),
        ({"run_uri": 3}, "train.run_uri: given 3"),
        (
            {"command": ["/train.py", "--epochs", 3]},
            "train.command.2: given 3; allowed: text: put it in quotes",
        ),
        ({"command": ["/train.py", None]}, "train.command.1: given None; allowed: a string"),
        ({"backoff_limit": "{{ params.limit }}"}, "train.backoff_limit: given '{{ params.limit }}'"),
        ({"workers": 2, "scaling": [{"workers": 9, "at_step": 1}]}, "raise max_workers for more"),
        ({"restart_policy": "Always", "backoff_limit": 0}, "a backoff_limit or active_deadline with Always"),
    ],
)
def test_every_parameter_is_judged_when_the_dag_is_parsed(bad: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        operator(**bad)
    assert told in str(refused.value)
    assert len(refused.value.problems) == 1


def test_a_template_hides_no_other_bad_value() -> None:
    with pytest.raises(SpecError) as refused:
        operator(
            command="train.py 'x",
            workers="{{ params.workers }}",
            min_workers=5,  # may well do: it depends on the template
            max_workers=6,
            run_uri="{{ params.uri }}",
            engine="{{ params.engine }}",
            cleanup="Some",
            checkpoint_every_steps=1.5,
            checkpoint_every_seconds=0,
        )
    told = [problem.path for problem in refused.value.problems]
    assert sorted(told) == [
        f"train.{name}"
        for name in ("checkpoint_every_seconds", "checkpoint_every_steps", "cleanup", "command")
    ]
    operator(command=["{{ params.script }}"], workers="{{ params.workers }}", min_workers=5, max_workers=6)


def test_looking_at_the_names_of_engines_imports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be heavy, and every DAG file with the operator in it is parsed all the time."""
    monkeypatch.setattr("airflow_elastic.adapters.plugins.load", mock.Mock(side_effect=AssertionError))
    operator(engine="local", launcher="torchrun")
    operator(engine="no_such.module:Engine", launcher="no_such.module:LAUNCHER")


def test_a_relative_run_uri_is_refused_wherever_it_comes_from(hook: FakeHook) -> None:
    late = operator(run_uri="{{ params.uri }}")
    late.run_uri = "runs/x"
    with pytest.raises(AirflowFailException, match="run_uri: given 'runs/x'; allowed: an absolute path"):
        late.execute({"ti": FakeTask()})
    hook.__dict__["settings"] = replace(hook.settings, run_root="runs")
    with pytest.raises(AirflowFailException, match="run_root: given 'runs'; allowed: an absolute path"):
        operator().execute({"ti": FakeTask()})
    with pytest.raises(SpecError, match=r"s\.run_uri: given 'runs/x'"):
        ElasticRunSensor(task_id="s", run_uri="runs/x")


def test_templated_values_are_checked_when_the_task_begins(hook: FakeHook) -> None:
    late = operator(workers="{{ params.workers }}")
    late.workers = "0"  # what rendering makes of it
    with pytest.raises(AirflowFailException, match="workers: given 0; allowed: an integer, at least 1"):
        late.execute({"ti": FakeTask()})
    assert not list(Path(hook.run_root).iterdir()), "nothing was created"


def test_every_parameter_reaches_the_specification() -> None:
    given: dict[str, Any] = {
        "command": "train.py --name 'a b'",
        "workers": "4",
        "min_workers": 2,
        "max_workers": 8,
        "procs_per_worker": 2,
        "node_unit": 2,
        "standby_workers": 1,
        "worker_resources": {"cpu": "2"},
        "launcher": "accelerate",
        "launcher_options": {"a": 1},
        "engine": "local",
        "engine_options": {"python": "/usr/bin/python3"},
        "working_dir": Path("/w"),
        "checkpoint_every_steps": 10,
        "checkpoint_every_seconds": timedelta(minutes=1),
        "keep_checkpoints": 5,
        "checkpoint": {"keep_best": "min loss"},
        "restart_policy": "ExitCode",
        "restart_exit_codes": [3],
        "backoff_limit": 2,
        "no_progress_timeout": 1,
        "start_timeout": 2,
        "grace_period": 3,
        "unattended_timeout": 900,
        "active_deadline": timedelta(hours=1),
        "cleanup": "All",
        "scaling": [{"workers": 6, "at_step": 3}],
        "env": {"A": "b"},
        "secrets": [{"name": "T", "source": "env", "key": "K"}],
        "tensorboard": True,
        "start_from": {"source": "s3://models/digits", "optional": True},
        "early_stop": "val_loss 5",
        "brain": "single",
    }
    assert given.keys() == PATHS.keys()
    spec = build_spec(given, name="n")
    assert spec.command == ("train.py", "--name", "a b")
    assert (spec.workers.count, spec.workers.at_least, spec.workers.at_most) == (4, 2, 8)
    assert spec.active_deadline_seconds == 3600
    plain = spec.to_dict()
    for path in PATHS.values():
        value: Any = plain
        for part in path.split("."):
            value = value[part]


def test_all_that_the_policy_of_checkpoints_has_can_be_said() -> None:
    further = {
        "keep_every_steps": 1000,
        "keep_best": "max accuracy",
        "overlap": True,
        "account_samples": True,
    }
    given = {
        "command": ["train.py"],
        "keep_checkpoints": 2,
        "checkpoint_every_steps": 10,
        "checkpoint": further,
    }
    assert build_spec(given, name="n").checkpoint == CheckpointPolicy(every_steps=10, keep_last=2, **further)  # type: ignore[arg-type]
    wrong = {"keep_best": "accuracy", "newest": 3, "every_steps": 4}
    with pytest.raises(SpecError) as refused:
        build_spec({**given, "checkpoint": wrong}, name="n")
    assert {problem.path for problem in refused.value.problems} == {
        "checkpoint.every_steps",
        "checkpoint.keep_best",
        "checkpoint.newest",
    }
    with pytest.raises(SpecError, match="checkpoint"):
        build_spec({**given, "checkpoint": "often"}, name="n")


def test_every_path_is_templated_and_every_template_field_is_an_attribute() -> None:
    assert {"command", "run_uri", "working_dir", "env", "engine_options", "secrets"} <= set(
        ElasticTrainOperator.template_fields
    )
    made = operator()
    assert all(hasattr(made, name) for name in ElasticTrainOperator.template_fields)


@pytest.mark.parametrize(
    ("own", "execution_timeout", "deferrable", "deadline"),
    [
        (None, None, True, None),
        (30, None, True, 30),
        (timedelta(seconds=30), timedelta(seconds=20), True, 20),
        (30, timedelta(hours=1), True, 30),
        (None, timedelta(seconds=20), True, 20),
        (30, timedelta(seconds=20), False, 30),
    ],
)
def test_execution_timeout_becomes_the_deadline_of_a_deferrable_task(
    own: Any, execution_timeout: timedelta | None, deferrable: bool, deadline: float | None
) -> None:
    """Airflow does not enforce it while a task is deferred."""
    made = operator(active_deadline=own, execution_timeout=execution_timeout, deferrable=deferrable)
    assert made._deadline() == deadline


def test_a_relative_script_lies_beside_its_dag() -> None:
    with DAG("d", schedule=None):
        made = operator(command=["train.py"], engine="local")
        pods = operator(command=["train.py"], engine="job", task_id="pods")
    spec = made._spec({"ti": FakeTask()}, ElasticHook())
    assert spec.working_dir == str(Path(__file__).parent)
    assert operator(engine="local")._spec({"ti": FakeTask()}, ElasticHook()).working_dir is None
    assert pods._spec({"ti": FakeTask()}, ElasticHook()).working_dir is None, "no pod has the DAG's folder"


def test_run_uris_differ_wherever_tasks_do_and_not_between_tries(hook: FakeHook) -> None:
    def uri(**changes: Any) -> str:
        return operator()._run_uri({"ti": FakeTask(**changes)}, hook)

    assert uri(try_number=1) == uri(try_number=2, id="try-2")
    uris = [uri(), uri(run_id="manual__2026-01-01T00-00-00-00-00"), uri(map_index=0), uri(map_index=1)]
    uris += [uri(dag_id="a-dag"), uri(task_id="group.train"), uri(task_id="..")]
    assert len(set(uris)) == len(uris)
    for one in uris:
        assert open_store(one).uri == one
    assert slug("plain-1.2_x") == "plain-1.2_x"
    assert slug("ä/b") != slug("ö/b")


def test_a_dry_run_logs_a_plan_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", f"sqlite:///{tmp_path}/brain.db")
    task = ElasticTrainOperator(task_id="t", command=["train.py"], run_uri=str(tmp_path / "run"))
    with mock.patch.object(ElasticTrainOperator, "log") as log:
        task.dry_run()
    said = [call.args[1] for call in log.info.call_args_list]
    assert said[0] == "t: at step 0; from 0 runs"
    assert any(line.startswith("unknown:") for line in said)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bundle", [None, SimpleNamespace(path="/bundles/dags/1")])
def test_a_dry_run_knows_the_runs_of_its_dag(
    bundle: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", f"sqlite:///{tmp_path}/brain.db")
    (tmp_path / "train.py").touch()
    with DAG("d") as dag:
        task = ElasticTrainOperator(task_id="t", command=["train.py"])
    monkeypatch.setattr(type(dag), "folder", str(tmp_path))
    instance = FakeTask(dag_id="d", task_id="t")
    instance.bundle_instance = bundle  # type: ignore[attr-defined]
    spec = task._spec({"ti": instance}, ElasticHook())  # type: ignore[typeddict-item]
    store = open_store(str(tmp_path / "run"))
    start_run(store, spec, engine=FakeEngine())
    with closing(Memory()) as memory:
        memory.remember(store)
    with mock.patch.object(ElasticTrainOperator, "log") as log:
        task.dry_run()
    assert log.info.call_args_list[0].args[1] == "d.t: at step 0; from 1 run"
