"""The pages of runs below an S3 prefix, on a real server of S3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.s3 import client
from airflow_elastic.spec import layout
from tests.support.runs.watched import Browser, submitted, trained, write_run
from tests.support.s3 import moto_server


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Ten runs below it."""
    store = write_run(tmp_path / "run", submitted(), progress=trained(250))
    store.put(layout.attempt_logs(1) + layout.rank_log(1, 0), b"hello\n")
    with moto_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        root = open_store(f"s3://{server.bucket}/all runs")
        for number in range(10):
            for entry in store.list():
                root.put(f"dag/run-{number}/{entry.key}", store.get(entry.key) or b"")
        shutil.rmtree(tmp_path / "run")
        yield root.uri


def test_runs_on_s3_are_read_with_few_clients(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes a tenth of a second: not one for each run and each look."""
    made = []
    real = client._made

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "_made", counted)
    browser = Browser(prefix)
    rows = browser.get("/api/runs").json()["runs"]
    assert {row["uri"] for row in rows} == {f"{prefix}/dag/run-{number}" for number in range(10)}
    for row in rows:
        path = f"/api/{row['path']}"
        assert browser.get(path).json()["status"]["step"] == 250
        for what in ("/workers", "/events", "/checkpoints", "/history", "/logs"):
            assert browser.get(path + what).status_code == 200, what
        assert browser.get(path + "/logs/text?attempt=1&rank=0").json()["text"] == "hello\n"
    answer = browser.post(f"{path}/actions/stop", json={}, headers={"X-Elastic-Request": "1"})
    assert answer.status_code == 202
    assert len(open_store(rows[-1]["uri"]).list(layout.CONTROL)) == 1
    assert len(made) <= 4
