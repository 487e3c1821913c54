"""The overview of a run and the list of runs, on the real server over runs in folders."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_elastic.spec import events as ev
from tests.support.builders import failed
from tests.support.runs.watched import Browser, submitted, trained, write_run


def test_a_run_that_trains(tmp_path: Path) -> None:
    write_run(tmp_path / "dag/one", submitted(), progress=trained(250))
    told = Browser(tmp_path).of("dag/one").json()
    assert told["status"]["state"] == "running"
    assert told["healthy"] == "ok"
    assert told["headline"].startswith("Trains at step 250 of 1,000")
    assert told["progress"]["fraction"] == 0.25
    assert (
        told["progress"]["eta"]["low"]
        <= told["progress"]["eta"]["seconds"]
        <= told["progress"]["eta"]["high"]
    )
    assert told["checkpoint"] == {
        "newest": None,
        "at_risk": {"steps": 250, "seconds": pytest.approx(17.5, abs=10)},
    }
    assert sum(row["seconds"] for row in told["goodput"]["rows"]) == pytest.approx(told["goodput"]["wall"])
    assert [mark["kind"] for mark in told["marks"]] == ["attempt"]


def test_why_a_run_failed(tmp_path: Path) -> None:
    now = time.time()
    over = ev.RunEnded(now, "failed", "rank 1 failed: ValueError: bad")
    write_run(tmp_path / "one", submitted(), ev.WorkersEnded(now, 1, failed()), ev.AttemptGone(now, 1), over)
    told = Browser(tmp_path).of("one").json()
    assert told["healthy"] == "error"
    assert told["headline"] == "Rank 1 failed: ValueError: bad"
    assert told["attempts"][0]["cause"] == "failure"
    assert "ValueError: bad" in told["attempts"][0]["headline"]
    assert [mark["kind"] for mark in told["marks"]] == ["attempt", "failure", "attempt", "end"]
    assert told["progress"]["eta"] is None


def test_the_list_is_sorted_filtered_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "a/first", submitted(), progress=trained(100), name="first")
    write_run(tmp_path / "b/second", submitted(), progress=trained(700), name="second")
    write_run(tmp_path / "over", submitted(), ev.RunEnded(time.time(), "failed", "lost"), name="over")
    browser = Browser(tmp_path)

    def names(**query: object) -> list[str]:
        return [one["name"] for one in browser.get("/api/runs", params=query).json()["runs"]]

    assert names(sort="-step") == ["second", "first", "over"]
    assert names(sort="step", state="running") == ["first", "second"]
    assert names(q="B/SEC") == ["second"]
    assert names(sort="name", limit=1, offset=1) == ["over"]
    told = browser.get("/api/runs").json()
    assert told["total"] == 3
    assert told["totals"] == {
        "runs": 3,
        "training": 2,
        "waiting": 0,
        "failed": 1,
        "succeeded": 0,
        "workers": 4,
        "goodput": pytest.approx(0.1, abs=0.1),
    }
    for one in told["runs"]:
        assert browser.get(f"/api/{one['path']}").json()["status"]["run"]["name"] == one["name"]
    refused = browser.get("/api/runs", params={"sort": "colour"})
    assert refused.status_code == 400
    assert "allowed: updated" in refused.json()["detail"]


def test_nothing_new_is_answered_without_a_body(tmp_path: Path) -> None:
    write_run(tmp_path / "over", submitted(), ev.RunEnded(time.time(), "failed", "lost"))
    browser = Browser(tmp_path)
    for path in ("/api/config", "/api/runs", "/api/run/b3Zlcg"):
        first = browser.get(path)
        assert first.status_code == 200
        again = browser.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b""), path
