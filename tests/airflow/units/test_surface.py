"""The hook, the link, the sensor, the page and what the provider says of itself."""

from __future__ import annotations

import importlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowNotFoundException,
)
from fastapi import HTTPException

import airflow_elastic.operators
import airflow_elastic.sensors
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.core.conditions import OutOfReach, Reached
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.hooks.elastic import Settings
from airflow_elastic.operators.link import ElasticRunLink
from airflow_elastic.provider_info import get_provider_info
from airflow_elastic.sensors import ElasticRunSensor
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.triggers.looks import RunReader
from airflow_elastic.web.airflow.locate_run import Locator, TaskInstance
from tests.support.runs.surface import FakeHook, FakeTask, begun, ended, operator

# -- hook, link, sensor ------------------------------------------------------------------------------------------------


def _connection(monkeypatch: pytest.MonkeyPatch, **found: Connection) -> None:
    def get(conn_id: str) -> Connection:
        if conn_id not in found:
            raise AirflowNotFoundException(f"The conn_id `{conn_id}` isn't defined")
        return found[conn_id]

    monkeypatch.setattr(BaseHook, "get_connection", staticmethod(get))


def test_the_default_connection_need_not_exist_any_other_must(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _connection(monkeypatch)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW__ELASTIC__RUN_ROOT", raising=False)
    assert ElasticHook().run_root == str(tmp_path / "elastic-runs")
    assert ElasticHook().settings.engine == "local"
    with pytest.raises(AirflowNotFoundException, match="mine"):
        _ = ElasticHook("mine").run_root
    monkeypatch.setenv("AIRFLOW__ELASTIC__RUN_ROOT", "s3://bucket/runs/")
    assert ElasticHook().run_root == "s3://bucket/runs"


def test_a_page_whose_connection_only_workers_know_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _connection(monkeypatch)
    ti = TaskInstance("a dag", "today", "train", -1)
    with pytest.raises(
        HTTPException, match="`mine` isn't defined on the API server, which needs it"
    ) as error:
        Locator().check(ti, "/runs/x", {"run_uri": "/runs/x", "elastic_conn_id": "mine", "aws_conn_id": None})
    assert error.value.status_code == 404


def test_only_known_keys_of_a_connection_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"run_root": "/mnt/runs", "engine": "", "s3_client_factory": "os.system", "environment": {"A": 1}}
    _connection(monkeypatch, mine=Connection(conn_id="mine", conn_type="elastic", extra=json.dumps(extra)))
    hook = ElasticHook("mine")
    assert (hook.run_root, hook.settings.engine, hook.aws_conn_id) == ("/mnt/runs", "local", None)
    _connection(
        monkeypatch, mine=Connection(conn_id="mine", conn_type="elastic", extra='{"engine": ["local"]}')
    )
    assert ElasticHook("mine").test_connection() == (
        False,
        "the connection 'mine' has engine ['local']; allowed: text",
    )


def test_an_aws_connection_serves_us_and_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = json.dumps({"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9"})
    aws = Connection(conn_id="a", conn_type="aws", login="AKIAEXAMPLE", password="sesame", extra=extra)
    _connection(monkeypatch, a=aws)
    hook = ElasticHook(aws_conn_id="a")
    store: Any = hook.open_store("s3://bucket/x")
    assert store.endpoint == "http://127.0.0.1:9"
    engine: Any = hook.engine("local", "s3://bucket/x")
    assert engine._environment == {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "sesame",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
    }
    local: Any = hook.engine("local", "/tmp/x")
    assert local._environment == {}
    with pytest.raises(AirflowNotFoundException):
        _ = ElasticHook(aws_conn_id="nonesuch").open_store("s3://bucket/x").get("key")


def test_the_link_names_the_task_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team/")
    ti: Any = FakeTask(run_id="manual__2026-01-01T00:00:00+00:00", map_index=3)
    assert ElasticRunLink().get_link(operator(), ti_key=ti) == (
        "https://airflow.example/team/dags/a%20dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/train/mapped/3"
        "/plugin/training"
    )


def test_a_sensor_waits_for_exactly_one_thing() -> None:
    assert ElasticRunSensor(task_id="s", run_uri="/r").state == "succeeded"
    for bad in ({"step": 3, "state": "ended"}, {"step": 0}, {"state": "done"}, {"checkpoint": False}):
        with pytest.raises(SpecError):
            ElasticRunSensor(task_id="s", run_uri="/r", **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"step": 10**30}, "step: given 10*; allowed: at most 9223372036854775807: it is kept in 64 bits"),
        ({"checkpoint": 10**30}, "checkpoint: given 10*; allowed: at most 9223372036854775807"),
        (
            {"poke_interval": float("nan")},
            "s.poke_interval: given nan; allowed: seconds, a finite number of at least",
        ),
        ({"poke_interval": float("inf")}, "s.poke_interval: given inf"),
        (
            {"poke_interval": 1e12},
            "s.poke_interval: given 1000000000000.0; allowed: at most 9000000000: clocks",
        ),
        ({"timeout": float("nan")}, "s.timeout: given nan; allowed: a finite number greater than 0"),
        ({"timeout": float("inf")}, "s.timeout: given inf"),
        ({"timeout": 1e12}, "s.timeout: given 1000000000000.0; allowed: at most 9000000000: clocks"),
    ],
)
def test_a_sensors_numbers_are_bounded(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        ElasticRunSensor(task_id="s", run_uri="/r", **numbers)


def reached(store: Store, condition: Reached) -> dict[str, Any] | None:
    look = RunReader(store).look()
    return None if look is None else condition.judge(look)


def test_what_a_run_has_reached(hook: FakeHook, tmp_path: Path) -> None:
    store = hook.open_store(str(tmp_path))
    assert reached(store, Reached(step=1)) is None, "a run that is yet to come is waited for"
    run = begun(hook, tmp_path)
    journal = Journal(run.store)
    assert reached(store, Reached("running")) is None
    journal.append(1, ev.AttemptSubmitted(1.0, 1, "job"))
    assert reached(store, Reached("running"))
    assert reached(store, Reached(checkpoint=True)) is None
    journal.append(2, ev.CheckpointCommitted(2.0, 1, 20, layout.manifest(20)))
    assert reached(store, Reached(checkpoint=True)) == {
        "run_uri": str(tmp_path),
        "state": "running",
        "step": 20,
        "checkpoint": 20,
    }
    assert reached(store, Reached(checkpoint=21)) is None
    assert reached(store, Reached(step=20))
    assert reached(store, Reached("ended")) is None
    ended(run, "failed", "no luck")
    assert reached(store, Reached("failed"))
    assert reached(store, Reached("ended"))
    for never in (Reached("succeeded"), Reached("stopped"), Reached(step=21), Reached(checkpoint=21)):
        with pytest.raises(OutOfReach, match=r"has failed at step 20 \(no luck\): it does not reach"):
            reached(store, never)


def test_a_sensor_in_a_worker_pokes_and_one_without_a_run_uri_says_so(hook: FakeHook, tmp_path: Path) -> None:
    run = begun(hook, tmp_path)
    poking = ElasticRunSensor(task_id="s", run_uri=str(tmp_path), deferrable=False)
    assert not poking.poke({})
    ended(run, "succeeded")
    assert poking.poke({}).xcom_value["state"] == "succeeded"
    poking.run_uri = "None"
    with pytest.raises(AirflowException, match="has pushed none"):
        poking.poke({})


# -- provider -------------------------------------------------------------------------------------------------------


def test_what_the_provider_names_is_there() -> None:
    info = get_provider_info()
    (connection,) = info["connection-types"]
    paths = [connection["hook-class-name"], *info["extra-links"], *info.get("cli", [])]
    paths += [decorator["class-name"] for decorator in info["task-decorators"]]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for group in info[kind]:
            for module in group["python-modules"]:
                importlib.import_module(module)
    assert set(connection["conn-fields"]) == {field.name for field in fields(Settings)}


def test_a_connection_has_namespace_and_queue_for_cluster_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"namespace": "ml", "queue": "team"}
    monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_ML", json.dumps({"conn_type": "elastic", "extra": extra}))
    hook = ElasticHook("elastic_ml")
    assert hook.engine_options("job", None) == extra
    assert hook.engine_options("job", {"namespace": "other", "image": "x"}) == {
        "namespace": "other",
        "queue": "team",
        "image": "x",
    }
    assert hook.engine_options("local", {"python": "p"}) == {"python": "p"}
    assert ElasticHook().engine_options("job", {"image": "x"}) == {"image": "x"}


@pytest.mark.parametrize("module", [airflow_elastic.operators, airflow_elastic.sensors])
def test_a_mapped_operator_has_lists_of_inlets_and_outlets(module: Any) -> None:
    """Airflow's own defaults for mapped tasks have None there for some class hierarchies."""
    for name in module.__all__:
        mapped = getattr(module, name).partial(task_id="one")
        assert (mapped.kwargs["inlets"], mapped.kwargs["outlets"]) == ([], []), name
        mapped._expand_called = True  # it warns otherwise
