"""The routes of the pages inside a real Airflow: anonymous people, a viewer, an editor, and other sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from airflow_elastic.adapters.records.mailbox import Mailbox
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.airflow.conftest import EDITOR, VIEWER
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.tries import FOREVER, TASK, Try

GETS = (
    "",
    "/history",
    "/heatmap",
    "/workers",
    "/events",
    "/logs",
    "/checkpoints",
    "/logs/text?attempt=1&rank=0",
)


@pytest.fixture(scope="module")
def ended(start: Callable[..., Try]) -> Try:
    """A run that has succeeded."""
    one = start("elastic_taskflow")
    one.wait("success")
    return one


class Person:
    """Somebody who asks as a program (with a token in a header) or as a browser (with Airflow's cookie)."""

    def __init__(self, airflow: Standalone, name: str | None, *, browser: bool = False) -> None:
        token = None if name is None else airflow.login(name, airflow.passwords[name])
        self.url, self.headers = airflow.url, dict[str, str]()
        if token is not None:
            kind, value = ("Cookie", f"_token={token}") if browser else ("Authorization", f"Bearer {token}")
            self.headers[kind] = value

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, **options: Any) -> httpx.Response:
        headers = {**self.headers, **(headers or {})}
        return httpx.get(f"{self.url}/elastic/api{path}", headers=headers, timeout=60, **options)

    def ask(self, path: str, action: str, given: Any = None, **headers: str) -> httpx.Response:
        return httpx.post(
            f"{self.url}/elastic/api{path}/actions/{action}",
            json=given or {},
            headers={"X-Elastic-Request": "1", **self.headers, **headers},
            timeout=60,
        )


def path_of(one: Try, index: object = -1) -> str:
    return "/ti/" + "/".join(quote(str(part), safe="") for part in (one.dag, one.run_id, TASK, index))


def test_who_may_read_which_route(ended: Try) -> None:
    path, stranger = path_of(ended), Person(ended.airflow, None)
    people = [Person(ended.airflow, name) for name in (VIEWER, EDITOR)]
    people.append(Person(ended.airflow, VIEWER, browser=True))
    for route in ("/config", "/runs", *(path + what for what in GETS)):
        assert stranger.get(route).status_code == 401, route
        for one in people:
            answer = one.get(route)
            assert answer.status_code == 200, f"{route}: {answer.text}"
            assert answer.headers["content-type"] == "application/json"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            again = one.get(route, headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304 or route.endswith(("checkpoints", "/runs")), route
    told = people[0].get(path).json()
    assert told["status"]["run"]["uri"] == ended.uri
    assert told["healthy"] == "ok"
    assert told["permissions"] == {"edit": False, "user": VIEWER}
    assert not any(action["allowed"] for action in told["actions"])
    assert people[1].get(path).json()["permissions"] == {"edit": True, "user": EDITOR}
    page = httpx.get(ended.airflow.url + told["links"]["log"].removeprefix(ended.airflow.url))
    assert page.status_code == 200


def test_the_list_has_the_runs_of_task_instances(ended: Try) -> None:
    viewer = Person(ended.airflow, VIEWER)

    def row() -> Any:
        rows = viewer.get("/runs", params={"limit": 1000}).json()["runs"]
        return next((one for one in rows if one["uri"] == ended.uri and one["state"] == "succeeded"), None)

    found = poll("the run to be in the list", row, timeout=PATIENCE_SECONDS)
    assert found["path"] == path_of(ended).removeprefix("/")
    ids = (found["dag_id"], found["run_id"], found["task_id"], found["map_index"])
    assert ids == (ended.dag, ended.run_id, TASK, -1)
    assert viewer.get(f"/{found['path']}").json()["status"]["run"]["uri"] == ended.uri


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/ti/nonesuch/x/train/-1", (403, 404)),
        ("/ti/~/x/train/-1", (403, 404)),
        ("/ti/elastic_taskflow/nonesuch/train/-1", (404,)),
        ("/ti/elastic_taskflow/x/train/-2", (422,)),
        ("/ti/elastic_taskflow/x/train/01", (422,)),
        (f"/ti/elastic_taskflow/x/train/{2**31}", (422,)),
        (f"/ti/elastic_taskflow/x/train/{10**400}", (422,)),
        ("/ti/elastic_taskflow/x%00/train/-1", (422,)),
        ("/ti/elastic_taskflow/%2e%2e/train/-1", (404,)),
        (f"/ti/elastic_taskflow/{'x' * 251}/train/-1", (422,)),
        ("/ti/elastic_taskflow/' OR 1=1 --/train/-1", (404,)),
    ],
)
def test_ids_that_name_nothing(ended: Try, path: str, status: tuple[int, ...]) -> None:
    viewer, editor = Person(ended.airflow, VIEWER), Person(ended.airflow, EDITOR)
    for what in ("", "/events"):
        answer = viewer.get(path + what)
        assert answer.status_code in status, answer.text
    assert editor.ask(path, "stop").status_code in status


def test_who_may_steer_and_how_it_is_recorded(start: Callable[..., Try], standalone: Standalone) -> None:
    roots = standalone.environment["AIRFLOW__ELASTIC__PAGE_ROOTS"]
    one = start("elastic_train", run_uri=f"{roots}/steered", steps=FOREVER * 100)
    airflow, path = one.airflow, path_of(one)
    viewer, editor = Person(airflow, VIEWER), Person(airflow, EDITOR)
    browser = Person(airflow, EDITOR, browser=True)
    store = open_store(one.uri)
    poll(
        "ranks to report", lambda: editor.get(path).json()["status"]["step"] or None, timeout=PATIENCE_SECONDS
    )
    for who, status in (
        (Person(airflow, None), 401),
        (viewer, 403),
        (Person(airflow, VIEWER, browser=True), 403),
    ):
        for action in ("scale", "save", "stop", "pin", "unpin", "resume", "exclude"):
            assert who.ask(path, action, Origin=airflow.url).status_code == status, action
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": airflow.url, "X-Elastic-Request": ""}):
        assert browser.ask(path, "stop", **headers).status_code == 403, headers
    assert editor.ask(path, "stop", Origin="https://evil.example").status_code == 403
    assert Mailbox(store).read() == []
    assert editor.ask(path, "scale", {"workers": 999}).status_code == 400
    answer = browser.ask(path, "stop", Origin=airflow.url)
    assert answer.status_code == 202, answer.text
    poll(
        "the run to stop",
        lambda: editor.get(path).json()["status"]["outcome"] == "stopped" or None,
        timeout=PATIENCE_SECONDS,
    )
    texts = [event["text"] for event in viewer.get(f"{path}/events").json()["events"]]
    assert any(text.startswith(f"stop asked for by {EDITOR}") for text in texts), texts
    logs = airflow.rest("GET", "eventLogs", params={"dag_id": one.dag, "run_id": one.run_id, "limit": 100})
    entries = [entry for entry in logs["event_logs"] if entry["event"].startswith("elastic_")]
    assert {(entry["event"], entry["owner"], entry["task_id"]) for entry in entries} == {
        ("elastic_stop", EDITOR, TASK),
        ("elastic_scale", EDITOR, TASK),
    }
    one.wait("failed")


def test_airflow_loads_the_tab_and_the_page_of_all_runs(ended: Try) -> None:
    plugins = ended.airflow.rest("GET", "plugins")["plugins"]
    (ours,) = [plugin for plugin in plugins if plugin["name"] == "airflow_elastic"]
    apps = {app["url_route"]: app for app in ours["react_apps"]}
    assert {route: app["destination"] for route, app in apps.items()} == {
        "training": "task_instance",
        "elastic-runs": "nav",
    }
    assert len({app["bundle_url"] for app in apps.values()}) == 2  # Airflow imports each address once
    for app in apps.values():
        bundle = httpx.get(f"{ended.airflow.url}/{app['bundle_url']}")
        assert bundle.status_code == 200
        assert bundle.headers["content-type"].startswith("text/javascript")
