"""Who gets an answer of the server of `airflow-elastic ui`, under which names, and with which ids and contents."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.status import RankReport
from airflow_elastic.views.all_runs.below import id_of, key_of
from tests.support.runs.watched import BASE, PORT, TOKEN, Browser, submitted, trained, write_run

ROUTES = [
    *("/", "/api/config", "/api/runs", "/static/main.js", "/?run=whatever"),
    *(
        f"/api/run/{id_of('one')}{what}"
        for what in ("", "/history", "/heatmap", "/workers", "/events", "/logs", "/checkpoints")
    ),
    f"/api/run/{id_of('one')}/logs/text?attempt=1&rank=0",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = write_run(tmp_path / "runs/one", submitted(), progress=trained())
    store.put(layout.attempt_logs(1) + layout.rank_log(1, 0), b"hello\n")
    return tmp_path / "runs"


@pytest.fixture
def static(tmp_path: Path) -> Path:
    folder = tmp_path / "static"
    folder.mkdir()
    (folder / "index.html").write_text("<!doctype html><title>runs</title>")
    (folder / "main.js").write_text("export {}")
    (folder / "secret.key").write_text("x")
    return folder


@pytest.mark.parametrize("route", ROUTES)
def test_nobody_without_the_token_gets_anything(root: Path, static: Path, route: str) -> None:
    stranger = Browser(root, signed_in=False, static=static)
    assert Browser(root, static=static).get(route).status_code == 200
    for headers in (
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": f"airflow_elastic_{PORT}="},
        {"Cookie": f"airflow_elastic_{PORT + 1}={TOKEN}"},
        {"Cookie": '=;"; airflow'},
    ):
        answer = stranger.get(route, headers=headers)
        assert answer.status_code == 401, headers
        assert "main.js" not in answer.text
    assert stranger.get(route, params={"token": "wrong"}).status_code == 401


@pytest.mark.parametrize("route", ROUTES)
def test_the_server_answers_to_its_own_names_only(root: Path, static: Path, route: str) -> None:
    """Else a site could let its name lead to this machine, and read the answers."""
    browser = Browser(root, static=static)
    for host in ("evil.example", f"evil.example:{PORT}", "127.0.0.1:x", "", f"localhost.evil.example:{PORT}"):
        assert browser.get(route, headers={"Host": host}).status_code == 421, host
    for host in (
        f"localhost:{PORT}",
        f"127.0.0.1:{PORT}",
        f"[::1]:{PORT}",
        f"LOCALHOST:{PORT}",
        "localhost:9999",
    ):
        assert browser.get(route, headers={"Host": host}).status_code == 200, host


def test_the_first_visit_leaves_a_cookie_and_no_token_in_the_address(root: Path, static: Path) -> None:
    browser = Browser(root, signed_in=False, static=static)
    first = browser.get("/runs/x", params={"token": TOKEN, "tab": "logs & more"})
    assert first.status_code == 303
    assert first.headers["location"] == "/runs/x?tab=logs+%26+more"
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert browser.get("/api/config").status_code == 200  # the cookie is sent
    for path in ("//evil.example/x", "/\\evil.example/x"):
        away = Browser(root, signed_in=False, static=static).get(BASE + path, params={"token": TOKEN})
        assert away.headers["location"] == "/evil.example/x"


def test_pages_and_their_parts(root: Path, static: Path) -> None:
    browser = Browser(root, static=static)
    assert browser.get("/run/x/logs").status_code == 404
    page = browser.get("/?run=x&tab=logs")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    script = browser.get("/static/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert (
        browser.get("/static/main.js", headers={"If-None-Match": script.headers["etag"]}).status_code == 304
    )
    for name in ("secret.key", "..%2Fruns%2Fone%2Fstatus.json", "../runs/one/status.json", "nothing.js", ""):
        assert browser.get(f"/static/{name}").status_code in (404, 200)
        assert "uri" not in browser.get(f"/static/{name}").text
    unbuilt = Browser(root, static=root / "nothing")
    assert "make setup" in unbuilt.get("/").text
    assert "make setup" in unbuilt.get("/static/main.js").text


@pytest.mark.parametrize("route", ROUTES)
def test_answers_are_kept_out_of_other_pages_and_caches(root: Path, static: Path, route: str) -> None:
    answer = Browser(root, static=static).get(route)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "no-cache" in answer.headers["cache-control"]


# -- hostile ids and contents --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ident",
    [
        id_of("../outside"),
        id_of("/etc"),
        id_of("one/../../outside"),
        id_of("one\0"),
        id_of("nothing"),
        id_of("one/journal"),
        id_of("one") + "=",
        "é",
        "%00",
        "%2e%2e",
        "A" * 5000,
        "*",
    ],
)
def test_an_id_opens_nothing_outside_of_the_root(root: Path, tmp_path: Path, ident: str) -> None:
    write_run(tmp_path / "outside", submitted())
    browser = Browser(root)
    for what in ("", "/events", "/workers", "/logs", "/checkpoints", "/history", "/heatmap"):
        answer = browser.get(f"/api/run/{ident}{what}")
        assert answer.status_code in (404, 503), f"{what}: {answer.text}"
        assert "outside" not in answer.text.replace("outside of", "")
    answer = browser.post(f"/api/run/{ident}/actions/stop", json={}, headers={"X-Elastic-Request": "1"})
    assert answer.status_code in (404, 503)


@pytest.mark.parametrize("key", ["a", "a/b c/é", "ß" * 100, "x=y/~1"])
def test_an_id_says_its_key(key: str) -> None:
    assert key_of(id_of(key)) == key


def test_the_root_may_be_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "one", submitted(), progress=trained())
    browser = Browser(tmp_path / "one")
    (run,) = browser.get("/api/runs").json()["runs"]
    assert browser.get(f"/api/{run['path']}").status_code == 200


def test_numbers_that_are_none_and_texts_that_bite(tmp_path: Path) -> None:
    nasty = '<img src=x onerror=alert(1)> \x1b[31m"quoted"\x1b[0m \u202e \x00 é'
    ranks = (RankReport(0, nasty, 5, time.time(), 0.1, loss=0.1),)
    now = time.time()
    store = write_run(
        tmp_path / "one",
        submitted(),
        ev.SaveFailed(now, 1, 4, nasty, nasty),
        progress=trained(5, ranks=ranks),
        name="a",
    )
    document = json.loads(store.get(layout.STATUS) or b"")
    document |= {"loss": float("nan"), "metrics": {nasty: float("inf"), "b": float("-inf")}}
    document["run"]["name"] = nasty
    store.put(layout.STATUS, json.dumps(document).encode())
    browser = Browser(tmp_path)
    answer = browser.get("/api/runs")
    assert answer.headers["content-type"] == "application/json"
    (run,) = answer.json()["runs"]
    assert run["loss"] == "NaN"
    assert run["name"] == nasty
    assert "not a number" in run["headline"]
    (event,) = browser.of("one", "/events", level="warning").json()["events"]
    assert nasty in event["text"]
    names = [one["name"] for unit in browser.of("one", "/workers").json()["units"] for one in unit["workers"]]
    assert nasty in names


def test_runs_that_are_damaged_do_not_hide_the_others(tmp_path: Path) -> None:
    write_run(tmp_path / "good", submitted(), progress=trained(), name="good")
    for name, status in (
        ("list", b"[]"),
        ("garbage", b"\xff\x00{"),
        ("types", b'{"run": {"name": 7}, "state": [], "step": "x", "attempts": 3, "restarts": []}'),
        ("huge", b'{"run": {}, "step": 1e400, "at": NaN, "total_steps": 1e400}'),
        ("deep", b'{"run":' + b'{"a":' * 50_000),
        ("empty", b'{"run": {}}'),
    ):
        store = write_run(tmp_path / name, submitted(), name=name)
        store.put(layout.STATUS, status)
    broken = open_store(str(tmp_path / "broken"))
    broken.put(layout.journal_entry(0), b"{}")
    told = Browser(tmp_path).get("/api/runs").json()
    rows = {one["uri"].rpartition("/")[2]: one for one in told["runs"]}
    assert rows.keys() == {"good", "list", "garbage", "types", "huge", "deep", "empty", "broken"}
    assert rows["good"]["healthy"] == "ok"
    assert rows["list"]["state"] == "running"  # read from the journal instead
    assert rows["broken"]["state"] == "unreadable"
    assert "cannot be read as a journal entry" in rows["broken"]["headline"]
    for sort in (
        "updated",
        "-created",
        "state",
        "-step",
        "world_size",
        "goodput",
        "-eta",
        "restarts",
        "name",
    ):
        assert len(Browser(tmp_path).get("/api/runs", params={"sort": sort}).json()["runs"]) == 8, sort


def test_cookies_of_other_programs_on_this_machine_do_no_harm(root: Path, static: Path) -> None:
    """A browser sends the cookies of all programs of a host to each of them, whatever the port."""
    browser = Browser(root, signed_in=False, static=static)
    for other in ('state={"open": true}', "two words=1", "=;"):
        mine = f"airflow_elastic_{PORT}={TOKEN}"
        assert browser.get("/api/config", headers={"Cookie": f"{other}; {mine}"}).status_code == 200, other


@pytest.mark.parametrize(
    "name", ["%00.js", "a%00/main.js", "..%2fserver.py", "%2fetc%2fpasswd", "secret.key", "%ff.js"]
)
def test_only_built_pages_are_files(root: Path, static: Path, name: str) -> None:
    assert Browser(root, static=static).get(f"/static/{name}").status_code in (200, 404)
    assert Browser(root, static=static).get(f"/static/{name}").text.count("secret") == 0
