"""Actions on the real server: what lands in the mailbox, what is refused, and from whom."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.spec import events as ev
from airflow_elastic.views.all_runs.below import id_of
from tests.support.runs.watched import BASE, TOKEN, Browser, submitted, trained, write_run
from tests.unit.web.test_details import save

COOKIE = f"airflow_elastic_8750={TOKEN}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A run with a checkpoint."""
    committed = ev.CheckpointCommitted(time.time(), 1, 20, "checkpoints/manifests/000000000020.json")
    store = write_run(tmp_path / "one", submitted(), committed, progress=trained(30))
    save(store, 20)
    return store


@pytest.mark.parametrize(
    ("action", "given", "kind"),
    [
        ("scale", {"workers": 3}, "scale"),
        ("save", {}, "save"),
        ("stop", {}, "stop"),
        ("resume", {"step": 20}, "resume"),
    ],
)
def test_a_request_lands_in_the_mailbox_with_its_person(
    store: Store, tmp_path: Path, action: str, given: dict[str, Any], kind: str
) -> None:
    browser = Browser(tmp_path)
    answer = browser.ask("one", action, given)
    assert answer.status_code == 202, answer.text
    assert answer.json()["text"].startswith("Asked ")
    (request,) = Mailbox(store).read()
    assert request.kind == kind
    assert request.by == browser.of("one").json()["permissions"]["user"]
    assert "@" in request.by


def test_a_checkpoint_is_pinned_and_unpinned(store: Store, tmp_path: Path) -> None:
    browser = Browser(tmp_path)

    def pinned() -> object:
        return browser.of("one", "/checkpoints").json()["checkpoints"][0]["pinned"]

    assert pinned() is None
    assert browser.ask("one", "pin", {"step": 20}).status_code == 202
    assert checkpoint_retention.pinned(store) == [20]
    assert pinned() is not None
    assert browser.ask("one", "unpin", {"step": 20}).status_code == 202
    assert checkpoint_retention.pinned(store) == []
    assert pinned() is None
    assert browser.ask("one", "unpin", {"step": 20}).status_code == 409
    missing = browser.ask("one", "pin", {"step": 21})
    assert missing.status_code == 409
    assert "step 21 has no committed checkpoint" in missing.json()["detail"]


@pytest.mark.parametrize(
    ("action", "given", "status", "words"),
    [
        ("scale", {"workers": 9}, 400, "workers: given 9; allowed"),
        ("scale", {"workers": "3"}, 400, "allowed: a whole number"),
        ("scale", {"workers": True}, 400, "allowed: a whole number"),
        ("scale", {"workers": 1e300}, 400, "allowed: a whole number"),
        ("scale", {}, 400, "workers: given None"),
        ("scale", {"workers": 2, "by": "root"}, 400, "by: given 'root'"),
        ("exclude", {"machine": "node"}, 409, "no other machine"),
        ("exclude", {"machine": "x" * 10_000}, 400, "at most 253"),
        ("explode", {}, 400, "allowed: scale, save"),
        ("save", {"x": 1}, 400, "no values"),
        ("save", [], 422, ""),
        ("save", "text", 422, ""),
    ],
)
def test_bad_values_are_refused_with_a_sentence(
    store: Store, tmp_path: Path, action: str, given: Any, status: int, words: str
) -> None:
    answer = Browser(tmp_path).post(
        f"/api/run/{id_of('one')}/actions/{action}", json=given, headers={"X-Elastic-Request": "1"}
    )
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert Mailbox(store).read() == []


def test_an_ended_run_cannot_be_steered(tmp_path: Path) -> None:
    store = write_run(
        tmp_path / "one", submitted(), ev.RunEnded(time.time(), "succeeded", "training is complete")
    )
    browser = Browser(tmp_path)
    offered = {one["name"]: one for one in browser.of("one").json()["actions"]}
    for action, given in (("scale", {"workers": 2}), ("save", {}), ("stop", {}), ("resume", {"step": 1})):
        assert not offered[action]["allowed"]
        assert "succeeded" in offered[action]["why_not"]
        answer = browser.ask("one", action, given)
        assert answer.status_code == 409
        assert "succeeded" in answer.json()["detail"]
    assert Mailbox(store).read() == []


def test_what_an_action_costs_is_said_before(store: Store, tmp_path: Path) -> None:
    offered = {one["name"]: one for one in Browser(tmp_path).of("one").json()["actions"]}
    assert all(one["cost"].endswith(".") for one in offered.values())
    assert "10 steps since the newest checkpoint are lost" in offered["resume"]["cost"]
    assert "for about 10 s" in offered["scale"]["cost"]
    assert {name for name, one in offered.items() if one["allowed"]} == {
        *("scale", "save", "stop", "pin", "unpin", "resume"),
    }


def test_to_resume_an_ended_run_takes_a_command(tmp_path: Path) -> None:
    """It has no attempt that could end, and no controller that reads the request."""
    store = write_run(tmp_path / "a run", submitted(), ev.RunEnded(time.time(), "failed", "lost"))
    offered = {one["name"]: one for one in Browser(tmp_path).of("a run").json()["actions"]}
    assert f"`airflow-elastic run --uri '{store.uri}'`" in offered["resume"]["cost"]


# -- requests of other sites ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Cookie": COOKIE, "Origin": BASE, "X-Elastic-Request": "1"}, 202),
        ({"Authorization": f"Bearer {TOKEN}", "X-Elastic-Request": "1"}, 202),
        ({"Cookie": COOKIE, "X-Elastic-Request": "1"}, 403),
        ({"Cookie": COOKIE, "Origin": BASE}, 403),
        ({"Cookie": COOKIE, "Origin": BASE, "X-Elastic-Request": "0"}, 403),
        ({"Cookie": COOKIE, "Origin": "http://evil.example", "X-Elastic-Request": "1"}, 403),
        ({"Cookie": COOKIE, "Origin": "null", "X-Elastic-Request": "1"}, 403),
        ({"Cookie": COOKIE, "Origin": "http://127.0.0.1:9999", "X-Elastic-Request": "1"}, 403),
        ({"Cookie": COOKIE, "Origin": f"{BASE}.evil.example", "X-Elastic-Request": "1"}, 403),
        (
            {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example", "X-Elastic-Request": "1"},
            403,
        ),
        ({"Origin": BASE, "X-Elastic-Request": "1"}, 401),
        ({"Cookie": COOKIE + "x", "Origin": BASE, "X-Elastic-Request": "1"}, 401),
        ({"Cookie": COOKIE, "Origin": BASE, "X-Elastic-Request": "1", "Host": "evil.example"}, 421),
        ({"Cookie": COOKIE, "Origin": BASE, "X-Elastic-Request": "1", "Content-Type": "text/plain"}, 4),
        (
            {
                "Cookie": COOKIE,
                "Origin": BASE,
                "X-Elastic-Request": "1",
                "Content-Type": "application/x-www-form-urlencoded",
            },
            4,
        ),
    ],
)
def test_only_our_own_pages_may_ask(
    store: Store, tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    """A status of 4 is any refusal."""
    answer = Browser(tmp_path, signed_in=False).post(
        f"/api/run/{id_of('one')}/actions/stop",
        content=b"{}",
        headers={"Content-Type": "application/json", **headers},
    )
    assert status in (answer.status_code, answer.status_code // 100), answer.text
    assert len(Mailbox(store).read()) == (1 if status == 202 else 0)
