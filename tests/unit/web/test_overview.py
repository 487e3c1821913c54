"""The overview of a run and the list of runs, on the real server over runs in folders."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.reports import write_status
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import Run
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.status import RankReport
from airflow_elastic.spec.training.early_stop import Watch
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


def test_what_it_began_with_and_how_near_its_early_stop_is(tmp_path: Path) -> None:
    def told(name: str) -> tuple[object, object]:
        document = Browser(tmp_path).of(name).json()
        return document["started_from"], document["early_stop"]

    write_run(tmp_path / "scratch", submitted(), progress=trained(250))
    assert told("scratch") == (None, None)
    origin = Origin("s3://models/digits", run="s3://runs/first", step=340, promotion=3)
    write_run(tmp_path / "new", submitted(), origin=origin, early_stop="val_loss 5")
    waiting = {"metric": "val_loss", "patience": 5, "since": 0, "best": None, "step": None}
    assert told("new") == ("promotion 3 of s3://models/digits", waiting)
    watch = Watch("val_loss", best=0.25, step=200, since=2, last=0.3)
    progress = replace(trained(250), early_stop=watch)
    write_run(tmp_path / "one", submitted(), progress=progress, early_stop="val_loss 5")
    assert told("one") == (None, {**waiting, "since": 2, "best": 0.25, "step": 200})


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


def test_runs_at_work_keep_their_places(tmp_path: Path) -> None:
    """Each of them has news all the time."""
    for name, ago in (("old", 300.0), ("new", 100.0), ("middle", 200.0)):
        publish_at(
            write_run(tmp_path / name, submitted(), progress=trained(), name=name),
            created=ago,
            updated=ago % 7,
        )
    over = write_run(tmp_path / "over", submitted(), ev.RunEnded(time.time(), "failed", "lost"), name="over")
    publish_at(over, created=50.0, updated=0.0)
    browser = Browser(tmp_path)
    assert [one["name"] for one in browser.get("/api/runs").json()["runs"]] == [
        "new",
        "middle",
        "old",
        "over",
    ]
    ascending = browser.get("/api/runs", params={"sort": "updated"}).json()["runs"]
    assert [one["name"] for one in ascending] == ["over", "old", "middle", "new"]


def publish_at(store: Store, *, created: float, updated: float) -> None:
    """The status document of a run that began and was heard of so many seconds ago."""
    document, now = Run(store).status(), time.time()
    write_status(store, {**document, "created_at": now - created, "at": now - updated})


def test_the_overview_says_what_a_slow_rank_costs(tmp_path: Path) -> None:
    ranks = tuple(
        RankReport(number, f"node-{number}", 40, time.time(), 0.1, forward_seconds=0.09 if number else 0.01)
        for number in range(2)
    )
    store = write_run(tmp_path / "one", submitted(), progress=trained(ranks=ranks))
    write_status(store, {**Run(store).status(), "stragglers": [1]})
    slow = Browser(tmp_path).of("one").json()["slow"]
    assert slow["ranks"] == [{"rank": 1, "worker": "node-1"}]
    assert slow["lost_seconds"] == pytest.approx(0.08)
    assert (slow["others_seconds"], slow["step_seconds"]) == (0.01, 0.1)
