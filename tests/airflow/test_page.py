"""Which run the page of a task instance opens, on a real Airflow where people edit XComs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from airflow_elastic.testing.standalone import Standalone
from tests.airflow.conftest import EDITOR
from tests.support.machine.tries import TASK, Try


@pytest.fixture(scope="module")
def pair(start: Callable[..., Try]) -> tuple[Try, Try]:
    """Two runs of one task."""
    both = start("elastic_taskflow"), start("elastic_taskflow")
    for one in both:
        one.wait("success")
    return both


def page(one: Try, more: str = "") -> httpx.Response:
    path = f"/elastic/runs/{one.dag}/{one.run_id.replace('+', '%2B')}/{TASK}?format=json{more}"
    return one.airflow.request("GET", path)


def edit(one: Try, uri: str) -> None:
    """As somebody who may edit XComs, and not configure anything."""
    airflow = one.airflow
    token = airflow.login(EDITOR, airflow.passwords[EDITOR])
    path = f"/api/v2/dags/{one.dag}/dagRuns/{one.run_id}/taskInstances/{TASK}/xcomEntries/run_uri"
    answer = httpx.patch(
        airflow.url + path, json={"value": uri}, headers={"Authorization": f"Bearer {token}"}, timeout=60
    )
    assert answer.status_code == 200, answer.text


def test_an_edited_xcom_opens_no_other_run(pair: tuple[Try, Try], tmp_path: Path) -> None:
    """Seen before: another run's status, whether files exist, and the API server's own credentials for S3 tried."""
    one, other = pair
    uri = one.uri
    assert page(one).json()["run"]["uri"] == uri
    secret = tmp_path / "secret"
    secret.write_text("x")
    for told in (other.uri, f"{uri}/../{Path(other.uri).name}", str(secret), "/nonesuch", "s3://bucket/x"):
        edit(one, told)
        answer = page(one)
        assert answer.status_code == 403, f"{told}: {answer.text}"
        assert "names a run that is not the task's own" in answer.text
    edit(one, f"{uri}~2")  # where it would be trained anew, had it been cleared
    assert page(one).status_code == 404
    edit(one, uri)
    assert page(one).json()["run"]["uri"] == uri


def test_a_run_beyond_the_configured_roots_is_not_read(
    start: Callable[..., Try], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`page_roots` of these tests has all that pytest makes, but for this."""
    outside = Path(tmp_path_factory.mktemp("outside")) / "run"
    one = start("elastic_train", run_uri=str(outside), steps=10)
    assert one.uri == str(outside)
    answer = page(one)
    assert answer.status_code == 403
    assert "[elastic] page_roots" in answer.text
    one.wait("success")


@pytest.mark.parametrize("index", ["-2", str(2**31), str(2**70), "first"])
def test_a_map_index_that_cannot_be_is_bad_input(pair: tuple[Try, Try], index: str) -> None:
    """Beyond what a database column holds it was an error of the server."""
    assert page(pair[0], f"&map_index={index}").status_code == 422
    assert page(pair[0], "&map_index=7").status_code == 404


@pytest.mark.siblings
@pytest.mark.parametrize("command", [("dags", "test"), ("tasks", "test")])
def test_a_dag_is_tested_to_its_end(standalone: Standalone, tmp_path: Path, command: tuple[str, str]) -> None:
    """Such a test runs the trigger without telling it whose it is, and hands on nothing but its event.

    It has a database of its own. In that of a running Airflow the triggerer there may take the trigger as well. Then
    the scheduler there ends the task before the test does.
    """
    copy = tmp_path / "airflow.db"
    with (
        closing(sqlite3.connect(standalone.home / "airflow.db")) as one,
        closing(sqlite3.connect(copy)) as other,
    ):
        one.backup(other)
    env = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{copy}"}
    task = [TASK] if command[0] == "tasks" else []
    said = standalone.command(*command, "elastic_taskflow", *task, timeout=280, env=env)
    assert "[rank 0] all ticks done" in said
    assert "run ended: succeeded" in said
    assert "could not be stored" not in said
    assert "state=success" in said or "new_state=success" in said, said
