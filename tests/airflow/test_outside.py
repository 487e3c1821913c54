"""What other systems hear of a run: metrics by Airflow's own, and lineage. A real Airflow sends both."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.spec import layout
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from airflow_elastic.triggers.metrics import METRICS
from tests.airflow.conftest import DAGS
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.tries import Try
from tests.support.training.saving import network, save

LINE = re.compile(
    r"airflow\.(?P<name>elastic\.[\w.]+)(?P<tags>(,\w+=[^:,]*)*):(?P<value>[^|]*)\|(?P<kind>\w+)"
)


class StatsD(threading.Thread):
    """A StatsD server: keeps what it is sent."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.heard: list[tuple[str, dict[str, str], float, str]] = []
        self.start()

    def run(self) -> None:
        while packet := self.socket.recv(65536):
            for line in LINE.finditer(packet.decode()):
                tags = dict(tag.split("=", 1) for tag in line["tags"].split(",") if tag)
                self.heard.append((line["name"], tags, float(line["value"]), line["kind"]))

    def named(self, name: str, **tags: str) -> list[float]:
        return [value for one, had, value, _ in self.heard if one == name and tags.items() <= had.items()]


@pytest.fixture(scope="module")
def statsd() -> StatsD:
    return StatsD()


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lineage") / "events"


@pytest.fixture(scope="module")
def told(statsd: StatsD, lineage: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """An Airflow of its own: every other test is spared the messages."""
    env = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(statsd.socket.getsockname()[1]),
        "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
            {"type": "file", "log_file_path": str(lineage), "append": True}
        ),
    }
    running = Standalone(tmp_path_factory.mktemp("airflow"), DAGS, env=env, progress=print)
    running.start()
    try:
        yield running
    finally:
        running.stop(detached=True)


@pytest.fixture(scope="module")
def runs(told: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Try]:
    """A run that succeeds, and one that fails; both deferred. And one that is driven in a worker."""
    confs: dict[str, dict[str, Any]] = {
        "elastic_train": {"run_uri": str(tmp_path_factory.mktemp("runs") / "run"), "steps": 60},
        "elastic_error": {},
        "elastic_worker": {"seconds": 3},
    }
    for dag in confs:
        told.wait_for_dag(dag)
    begun = {dag: Try(told, dag, told.trigger(dag, conf)) for dag, conf in confs.items()}
    begun["elastic_train"].wait("success")
    begun["elastic_error"].wait("failed")
    begun["elastic_worker"].wait("success")
    return begun


def test_a_run_that_the_triggerer_drives_sends_its_metrics(runs: dict[str, Try], statsd: StatsD) -> None:
    mine = {"dag_id": "elastic_train", "task_id": "train", "engine": "local"}
    assert statsd.named("elastic.run.ended", outcome="succeeded", **mine) == [1.0]
    assert statsd.named("elastic.attempt.started", in_place="false", **mine) == [1.0]
    assert statsd.named("elastic.attempt.ended", cause="succeeded", failure="none", **mine) == [1.0]
    assert len(statsd.named("elastic.checkpoint.committed", **mine)) >= 1
    for name in ("step", "workers", "goodput"):
        assert statsd.named(f"elastic.run.{name}", **mine), name
    failed = {"dag_id": "elastic_error", "cause": "failure", "failure": "code_error"}
    assert len(statsd.named("elastic.attempt.ended", **failed)) == 2


def test_a_run_in_a_worker_sends_the_same(runs: dict[str, Try], statsd: StatsD) -> None:
    assert statsd.named("elastic.run.ended", dag_id="elastic_worker", outcome="succeeded") == [1.0]


def test_each_metric_that_is_sent_is_described(runs: dict[str, Try], statsd: StatsD) -> None:
    kinds = {"g": "gauge", "c": "counter", "ms": "timer"}
    sent = {(name, kinds[kind]) for name, _, _, kind in statsd.heard}
    assert sent
    assert not {(name, kind) for name, kind in sent if METRICS[name].kind != kind}


def events(lineage: Path) -> list[dict[str, Any]]:
    if not lineage.exists():
        return []
    return [json.loads(line) for line in lineage.read_text().splitlines() if line.startswith("{")]


def test_lineage_has_the_promoted_model(told: Standalone, lineage: Path) -> None:
    told.wait_for_dag("promote")
    home = told.home / "promoted"
    save(home / "run", 5, network(5))
    run = told.trigger("promote", {"step": 5, "accuracy": 0.8})
    told.wait_run("promote", run, timeout=PATIENCE_SECONDS)

    def complete() -> dict[str, Any] | None:
        mine = [one for one in events(lineage) if one["job"]["name"] == "promote.promote"]
        return next((one for one in mine if one["eventType"] == "COMPLETE"), None)

    event = poll("a COMPLETE event of the promotion", complete, timeout=PATIENCE_SECONDS)
    inputs, outputs = (
        [(one["namespace"], one["name"]) for one in event[name]] for name in ("inputs", "outputs")
    )
    assert ("file", f"{home}/run/{layout.manifest(5)}") in inputs
    assert ("file", f"{home}/models") in outputs


@pytest.mark.parametrize(
    ("dag", "kind", "outcome"),
    [("elastic_train", "COMPLETE", "succeeded"), ("elastic_error", "FAIL", "failed")],
)
def test_lineage_has_the_course_of_the_run(
    runs: dict[str, Try], lineage: Path, dag: str, kind: str, outcome: str
) -> None:
    def last() -> dict[str, Any] | None:
        mine = [one for one in events(lineage) if one["job"]["name"] == f"{dag}.train"]
        return next((one for one in mine if one["eventType"] == kind), None)

    event = poll(f"a {kind} event of {dag}", last, timeout=PATIENCE_SECONDS)
    facet = event["run"]["facets"]["elastic_run"]
    assert (facet["outcome"], facet["uri"], facet["engine"]) == (outcome, runs[dag].uri, "local")
    assert [one["number"] for one in facet["attempts"]] == [*range(1, len(facet["attempts"]) + 1)]
    if outcome == "succeeded":
        assert facet["step"] == 60
        (dataset,) = event["outputs"]
        assert dataset["namespace"] == "file"
        assert dataset["name"].startswith(runs[dag].uri)
    else:
        assert "on purpose, at tick 3" in facet["reason"]
