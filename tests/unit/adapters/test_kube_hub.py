"""One watch for all, over a server that misbehaves: nothing is made up, nothing is lost, nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from airflow_elastic.adapters.kube import KubeError, NoSuchKind, connect
from airflow_elastic.adapters.kube import hub as hub_module
from airflow_elastic.adapters.kube.hub import Hub, Query, hub
from tests.support.kubernetes.kube_server import KEY, THINGS, ApiServer, api_server, kubeconfig, status
from tests.support.machine.patience import PATIENCE_SECONDS, until

Snapshot = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LINGER_SECONDS", 0.05)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as running:
        yield running


def slim(found: dict[str, Any]) -> dict[str, Any]:
    return {"name": found["metadata"]["name"], "size": found["size"]}


QUERY = Query(THINGS, "ns", KEY, KEY, slim)


class Follower:
    """What one follower has seen; `until` waits for more."""

    def __init__(self, shared: Hub, key: str, query: Query = QUERY) -> None:
        self.seen: list[Snapshot] = []
        self._shown = asyncio.Event()
        self._task = asyncio.create_task(self._follow(shared, key, query))

    async def _follow(self, shared: Hub, key: str, query: Query) -> None:
        try:
            async with contextlib.aclosing(shared.follow(key, query)) as snapshots:
                async for (snapshot,) in snapshots:
                    self.seen.append(snapshot)
                    self._shown.set()
        finally:
            self._shown.set()

    async def until(self, **sizes: int) -> None:
        """Wait until the newest snapshot is this; raises what following raised."""
        wanted = [{"name": name, "size": size} for name, size in sorted(sizes.items())]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.seen or self.seen[-1] != wanted:
                if self._task.done():
                    await self._task
                await self._shown.wait()
                self._shown.clear()

    async def error(self) -> BaseException | None:
        """What following raises in the end."""
        await asyncio.wait([self._task], timeout=PATIENCE_SECONDS)
        return self._task.exception()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@contextlib.asynccontextmanager
async def following(server: ApiServer, *keys: str, query: Query = QUERY) -> AsyncIterator[list[Follower]]:
    async with hub(server.access) as shared:
        followers = [Follower(shared, key, query) for key in keys]
        try:
            yield followers
        finally:
            for follower in followers:
                await follower.end()


def ours() -> set[asyncio.Task[Any]]:
    """The tasks of hubs; the server has some too."""
    return {task for task in asyncio.all_tasks() if task.get_name().split()[0] in ("hub", "watch")}


async def test_any_number_of_followers_cost_one_list_and_one_watch(server: ApiServer) -> None:
    keys = [f"run-{i}" for i in range(200)]
    for key in keys:
        await server.put(f"{key}-a", key, size=1)
    async with following(server, *keys) as followers:
        for key, follower in zip(keys, followers, strict=True):
            await follower.until(**{f"{key}-a": 1})
        await server.put("run-7-b", "run-7", size=2)
        await followers[7].until(**{"run-7-a": 1, "run-7-b": 2})
        await server.remove("run-7-a")
        await followers[7].until(**{"run-7-b": 2})
        async with following(server, "run-7", "run-8", "nobody's") as (late, other, empty):
            await late.until(**{"run-7-b": 2})
            await other.until(**{"run-8-a": 1})
            await empty.until()
        assert len(followers[8].seen) == 1, "others' news are none"
    assert server.seen == ["list", "watch"]


async def test_a_server_that_is_not_there_yet_is_waited_for_and_never_taken_for_an_empty_one(
    server: ApiServer,
) -> None:
    await server.put("a", "run", size=1)
    down = True
    server.refuse = lambda *_: status(503, "ServiceUnavailable", "starting") if down else None
    async with following(server, "run") as (follower,):
        await server.asked("list", 2)
        down = False
        await follower.until(a=1)
        assert follower.seen == [[{"name": "a", "size": 1}]]


async def test_an_outage_is_no_news_and_what_changed_meanwhile_is(server: ApiServer) -> None:
    for name in "ab":
        await server.put(name, "run", size=1)
    async with following(server, "run") as (follower,):
        await follower.until(a=1, b=1)
        down = True
        server.refuse = lambda *_: status(503, "ServiceUnavailable", "stopping") if down else None
        await server.cut()
        await server.asked("watch", 3)
        await server.remove("a")
        await server.put("b", "run", size=2)
        await server.put("c", "run", size=3)
        assert follower.seen == [[{"name": "a", "size": 1}, {"name": "b", "size": 1}]]
        down = False
        await follower.until(b=2, c=3)
        assert server.count("list") == 1, "the watch goes on from where it was"


@pytest.mark.parametrize("asked", ["list", "watch"])
async def test_trouble_that_lasts_is_told(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setattr(hub_module, "TROUBLE_SECONDS", 1.0)
    await server.put("a", "run", size=1)
    if asked == "watch":
        async with following(server, "run") as (follower,):
            await follower.until(a=1)
            server.refuse = lambda *_: status(503, "ServiceUnavailable", "on fire")
            await server.cut()
            error = await follower.error()
    else:
        server.refuse = lambda *_: status(503, "ServiceUnavailable", "on fire")
        async with following(server, "run") as (follower,):
            error = await follower.error()
    assert isinstance(error, KubeError)
    assert "on fire" in str(error)
    async with following(server, "run") as (follower,):
        assert isinstance(await follower.error(), KubeError), "late comers are told at once"
        server.refuse = lambda *_: None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                async with following(server, "run") as (again,):
                    with contextlib.suppress(KubeError):
                        await again.until(a=1)
                        break
                await asyncio.sleep(0)


async def test_what_no_waiting_mends_is_told_at_once(server: ApiServer) -> None:
    server.refuse = lambda *_: status(404, "NotFound", "the server could not find the requested resource")
    async with following(server, "run") as (follower,):
        error = await follower.error()
    assert isinstance(error, NoSuchKind)
    assert "things.example.org comes with the operator of things; install that" in str(error)


@pytest.mark.parametrize("interrupted", [True, False])
async def test_what_the_server_has_forgotten_is_listed_anew(server: ApiServer, interrupted: bool) -> None:
    for name in "ab":
        await server.put(name, "run", size=1)
    async with following(server, "run", "other") as (follower, other):
        await follower.until(a=1, b=1)
        await other.until()
        down = interrupted
        server.refuse = lambda *_: status(503, "ServiceUnavailable", "away") if down else None
        if interrupted:  # then the next watch is refused with 410; else the one that is on breaks off with it
            await server.cut()
            await server.asked("watch", 2)
        await server.remove("a")
        await server.put("c", "run", size=3)
        await server.compact()
        down = False
        await follower.until(b=1, c=3)
        assert server.count("list") == 2
        assert [snapshot for snapshot in other.seen if snapshot] == []


async def test_a_watch_that_is_never_gone_on_with_is_given_up_for_a_list(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an older state of the cluster was restored, the version is one that the server will know much later."""
    monkeypatch.setattr(hub_module, "STUBBORN", 2)
    await server.put("a", "run", size=1)
    async with following(server, "run") as (follower,):
        await follower.until(a=1)
        since = server.count("list")
        server.refuse = lambda what, _: (
            status(504, "Timeout", "Too large resource version")
            if what == "watch" and server.count("list") == since
            else None
        )
        await server.cut()
        await server.remove("a")
        await follower.until()


async def test_watches_that_end_at_once_are_begun_anew_with_pauses(server: ApiServer) -> None:
    server.watch_lasts = 0
    client = await connect(server.access)
    await server.put("a", "run", size=1)
    async with following(server, "run") as (follower,):
        await follower.until(a=1)
        for _ in range(200):
            await client.get(THINGS, "ns", "a")
    await client.close()
    assert server.count("watch") < 20, "and not as often as they can be asked for"


async def test_a_watch_of_few_events_at_a_time_loses_none(server: ApiServer) -> None:
    server.watch_lasts = 1
    async with following(server, "run") as (follower,):
        await follower.until()
        for size in range(1, 20):
            await server.put("a", "run", size=size)
            await follower.until(a=size)


async def test_an_object_that_cannot_be_read_is_an_error_for_its_followers_alone(server: ApiServer) -> None:
    await server.put("a", "run", size=1)
    await server.put("b", "other", size=1)
    async with following(server, "run", "other") as (follower, other):
        await follower.until(a=1)
        await other.until(b=1)
        await server.put("a", "run", shape="square")
        error = await follower.error()
        assert isinstance(error, KubeError)
        assert "cannot read things.example.org a: KeyError: 'size'" in str(error)
        await server.put("a", "run", size=3)
        await server.put("b", "other", size=2)
        await other.until(b=2)
        async with following(server, "run") as (again,):
            await again.until(a=3)


async def test_answers_that_make_no_sense_are_trouble_and_no_end(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "TROUBLE_SECONDS", 0.2)
    await server.put("a", "run", size=1)
    server.refuse = lambda *_: aiohttp.web.json_response({"kind": "Nonsense"})
    async with following(server, "run") as (follower,):
        error = await follower.error()
    assert isinstance(error, KubeError)
    assert "KeyError" in str(error)


async def test_an_object_whose_label_is_written_anew_belongs_to_the_new_key_alone(server: ApiServer) -> None:
    await server.put("a", "run", size=1)
    async with following(server, "run", "other", "") as (follower, other, nobody):
        await follower.until(a=1)
        await server.put("a", "other", size=2)
        await follower.until()
        await other.until(a=2)
        await server.put("a", None, size=3)
        await other.until()
        await nobody.until(a=3)
        await server.remove("a")
        await nobody.until()


async def test_a_hub_that_nobody_uses_ends_and_leaves_nothing(server: ApiServer) -> None:
    async with following(server, "run") as (follower,):
        await follower.until()
        tasks = ours()
        assert tasks
    _, left = await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
    assert not left
    gc.collect()
    sessions = [found for found in gc.get_objects() if type(found) is aiohttp.ClientSession]
    assert [session for session in sessions if not session.closed] == []
    async with following(server, "run") as (follower,):
        await follower.until()
    assert server.count("list") == 2


def test_a_hub_ends_with_its_event_loop() -> None:
    async def use() -> set[asyncio.Task[Any]]:
        async with api_server() as server, following(server, "run") as (follower,):
            await follower.until()
            return ours()

    tasks = asyncio.run(use())
    assert tasks
    assert all(task.done() for task in tasks)
    assert asyncio.run(use()), "and the next loop has one of its own"


async def test_who_asked_first_may_go_while_others_wait_for_the_same_connection(
    server: ApiServer, tmp_path: Path
) -> None:
    """A kubeconfig may name a program that gives the token: connecting takes as long as it does."""
    go, going = tmp_path / "go", tmp_path / "going"
    program = f"""
import json, pathlib, time
pathlib.Path({str(going)!r}).touch()
while not pathlib.Path({str(go)!r}).exists():
    time.sleep(0.01)
print(json.dumps({{"apiVersion": "v1", "kind": "ExecCredential", "status": {{"token": "t"}}}}))
"""
    user = {"exec": {"apiVersion": "v1", "command": sys.executable, "args": ["-c", program]}}
    access = type(server.access)(content=json.dumps(kubeconfig(server.url, user=user)))

    async def use() -> bool:
        async with hub(access) as shared:
            return await shared.client.knows(THINGS) or True

    first, second = asyncio.create_task(use()), asyncio.create_task(use())
    await asyncio.to_thread(until, going.exists, "the program")
    first.cancel()
    await asyncio.wait([first])
    go.touch()
    server.refuse = lambda *_: aiohttp.web.json_response({"resources": []})
    assert await second
