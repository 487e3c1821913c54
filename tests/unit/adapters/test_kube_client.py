"""What an API server, or whoever stands in front of it, can answer; and what kubeconfigs can hold."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from airflow_elastic.adapters.kube import (
    Access,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    NoSuchKind,
    OverQuota,
    connect,
)
from airflow_elastic.adapters.kube.errors import error_of
from airflow_elastic.spec.errors import EngineError
from tests.support.kubernetes.kube_server import THINGS, ApiServer, api_server, kubeconfig, status


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        yield running


# -- answers -----------------------------------------------------------------------------------------------------------

RIGHTS = 'jobs.batch is forbidden: User "u" cannot create resource "jobs" in API group "batch" in the namespace "n"'
QUOTA = 'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2'
ENDING = 'pods "p" is forbidden: unable to create new content in namespace n because it is being terminated'
POLICY = 'pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged'
WEBHOOK = 'admission webhook "v.example.org" denied the request: no owner'


@pytest.mark.parametrize(
    ("code", "reason", "message", "details", "kind", "final", "says"),
    [
        (404, "NotFound", 'jobs.batch "j" not found', {"name": "j"}, Missing, False, "not found"),
        (404, "NotFound", "the server could not find it", {}, NoSuchKind, True, "does not know this kind"),
        (404, "NotFound", "the server could not find it", None, NoSuchKind, True, "does not know this kind"),
        (
            *(404, "NotFound", 'namespaces "n" not found', {"name": "n", "kind": "namespaces"}),
            *(Invalid, True, "create it, or name another"),
        ),
        (409, "AlreadyExists", 'jobs.batch "j" already exists', {}, Conflict, False, "already exists"),
        (410, "Expired", "too old resource version", {}, Gone, False, "too old"),
        (400, "BadRequest", 'strict decoding error: unknown field "spec.x"', {}, Invalid, True, '"spec.x"'),
        (422, "Invalid", "spec.replicas: Invalid value: -1", {}, Invalid, True, "spec.replicas"),
        (401, "Unauthorized", "Unauthorized", {}, Forbidden, True, "log in again"),
        (403, "Forbidden", RIGHTS, {}, Forbidden, True, "grant it"),
        (403, "Forbidden", ENDING, {}, Forbidden, True, "terminated"),
        (403, "Forbidden", QUOTA, {}, OverQuota, False, "for now"),
        (403, "Forbidden", POLICY, {}, Invalid, True, "PodSecurity"),
        (403, "Forbidden", WEBHOOK, {}, Invalid, True, "denied the request"),
        (500, "InternalError", "failed calling webhook: connection refused", {}, KubeError, False, "for now"),
        (429, "TooManyRequests", "please try again", {}, KubeError, False, "for now"),
    ],
)
def test_an_answer_becomes_the_error_that_says_what_to_do(
    code: int, reason: str, message: str, details: Any, kind: type[KubeError], final: bool, says: str
) -> None:
    body = {"kind": "Status", "reason": reason, "message": message, "details": details}
    error = error_of(code, json.dumps(body).encode(), "create jobs.batch in namespace n")
    assert type(error) is kind
    assert error.is_final is final
    assert error.status == code
    assert "create jobs.batch in namespace n" in str(error)
    assert says in str(error)
    if kind is not Forbidden or message is not RIGHTS:
        assert "grant" not in str(error)


def test_four_words_are_how_a_server_says_that_it_has_no_such_group() -> None:
    assert type(error_of(404, b"404 page not found\n", "list x")) is NoSuchKind


def test_what_a_proxy_says_is_not_taken_for_the_cluster() -> None:
    error = error_of(404, b"<html>no backend</html>", "list x")
    assert type(error) is KubeError
    assert "no API server" in str(error)


async def test_a_page_of_text_in_place_of_an_answer_is_an_error_of_ours(server: ApiServer) -> None:
    server.refuse = lambda *_: web.Response(text="<html>Please log in</html>")
    client = await connect(server.access)
    for asked in (client.get(THINGS, "ns", "a"), client.list(THINGS, "ns"), client.knows(THINGS)):
        with pytest.raises(KubeError, match="no API server; it says '<html>Please log in"):
            await asked
    await client.close()


async def test_a_password_in_the_url_of_a_proxy_is_not_told() -> None:
    config = kubeconfig("http://example.invalid", **{"proxy-url": "http://me:secret@127.0.0.1:1"})
    client = await connect(Access(content=json.dumps(config)))
    with pytest.raises(KubeError) as raised:
        await client.get(THINGS, "ns", "a")
    await client.close()
    assert "for now" in str(raised.value)
    assert "secret" not in str(raised.value)


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_list_is_whole_over_pages_and_over_pages_that_expire(server: ApiServer) -> None:
    server.page = 2
    for i in range(5):
        await server.put(f"t{i}", "run")
    client = await connect(server.access)
    items, version = await client.list(THINGS, "ns")
    assert [item["metadata"]["name"] for item in items] == [f"t{i}" for i in range(5)]
    assert int(version) == 105

    def expired(_: str, request: web.Request) -> web.Response | None:
        late = request.query.get("continue") == "4"
        return status(410, "Expired", "the provided continue parameter is too old") if late else None

    server.refuse = expired
    again, _ = await client.list(THINGS, "ns")
    assert again == items
    for i in range(5):
        await server.remove(f"t{i}")
    assert (await client.list(THINGS, "ns"))[0] == []
    await client.close()


# -- credentials -------------------------------------------------------------------------------------------------------


def only(token: str) -> Any:
    """Refuses every other token."""

    def refuse(_: str, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") == f"Bearer {token}":
            return None
        return status(401, "Unauthorized", "Unauthorized")

    return refuse


def by_program(place: Path) -> dict[str, Any]:
    """A user of a kubeconfig whose token is what stands in a file."""
    credential = '{"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
    program = f"print({credential!r} % open({str(place)!r}).read())"
    return {"exec": {"apiVersion": "v1", "command": sys.executable, "args": ["-c", program]}}


def by_file(place: Path) -> dict[str, Any]:
    """A user of a kubeconfig whose token stands in a file."""
    return {"tokenFile": str(place)}


@pytest.mark.parametrize("user", [by_program, by_file])
async def test_a_token_that_has_expired_is_asked_for_anew(
    server: ApiServer, tmp_path: Path, user: Any
) -> None:
    place = tmp_path / "token"
    place.write_text("first")
    server.refuse = only("first")
    await server.put("a", "run")
    client = await connect(Access(content=json.dumps(kubeconfig(server.url, user=user(place)))))
    await client.get(THINGS, "ns", "a")
    server.refuse = only("second")
    with pytest.raises(Forbidden, match="log in again"):
        await client.get(THINGS, "ns", "a")
    place.write_text("second")
    await client.get(THINGS, "ns", "a")
    place.write_text("third")
    server.refuse = only("third")
    async with client.watch(THINGS, "ns", labels="", version="100", seconds=60) as events:
        assert (await anext(events))["object"]["metadata"]["name"] == "a"
    place.unlink()
    server.refuse = only("fourth")
    with pytest.raises(Forbidden, match="log in again"):
        await client.get(THINGS, "ns", "a")
    await client.close()


async def test_the_kubeconfig_is_the_one_that_the_environment_names_now(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "my config"
    path.write_text(json.dumps(kubeconfig(server.url)))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{path}")
    client = await connect(Access())
    assert client.server == server.url
    await client.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no file"),
        ("", "no cluster can be reached"),
        ("{[", "no cluster can be reached"),
        ("just words", "no cluster can be reached"),
        (
            json.dumps({**kubeconfig("https://h", user={"token": "my-secret"}), "current-context": "x"}),
            "object with name x",
        ),
        (
            json.dumps(
                kubeconfig("https://h", user={"token": "my-secret", "auth-provider": {"name": "oidc"}})
            ),
            "oidc",
        ),
        (json.dumps(kubeconfig("https://h", user={"exec": {"token": "my-secret"}})), "missing key 'command'"),
        (
            json.dumps(kubeconfig("https://h", **{"certificate-authority-data": "bXktc2VjcmV0"})),
            "certificates",
        ),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_told_without_what_is_in_it(
    tmp_path: Path, text: str | None, says: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EngineError) as raised:
        await connect(Access(kubeconfig=str(path)))
    assert says in str(raised.value)
    assert str(path) in str(raised.value)
    assert "secret" not in str(raised.value)


async def test_outside_a_pod_and_without_a_kubeconfig_the_error_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(EngineError, match="set KUBECONFIG, or name a kubeconfig"):
        await connect(Access())


def test_what_describes_an_access_holds_no_token() -> None:
    assert "secret" not in repr(Access(content='{"token": "secret"}'))
