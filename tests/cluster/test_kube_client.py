"""Our client and the shared watch, over a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from airflow_elastic.adapters.kube import (
    Client,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    NoSuchKind,
    Resource,
    connect,
)
from airflow_elastic.adapters.kube import client as client_module
from airflow_elastic.adapters.kube import hub as hub_module
from airflow_elastic.adapters.kube.hub import Hub, Query, hub
from airflow_elastic.adapters.kube.resources import EVENTS, JOBS, PODS
from tests.support.kubernetes.kube import Account, Door
from tests.support.machine.patience import PATIENCE_SECONDS, until_async
from tests.support.runs.faults import Faults

MAPS = Resource("", "v1", "configmaps", "ConfigMap")
WIDGETS = Resource("widgets.example.org", "v1", "widgets", "Widget", needs="the widget operator")
KEY = "example.org/run"
ALL_OF_MAPS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}

MakeAccount = Callable[..., Awaitable[Account]]


def config_map(name: str, key: str | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {} if key is None else {KEY: key}}, "data": data}


def job(**changes: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "localhost/none:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": {"name": "job"}, "spec": {"suspend": True, "template": template, **changes}}


# -- the verbs ---------------------------------------------------------------------------------------------------------


async def test_an_object_is_created_read_changed_and_deleted(client: Client, namespace: str) -> None:
    made = await client.create(MAPS, namespace, config_map("one", "run", a="1", b="2"))
    assert (await client.get(MAPS, namespace, "one"))["metadata"]["uid"] == made["metadata"]["uid"]
    await client.patch(MAPS, namespace, "one", {"data": {"a": None, "b": "3"}})
    assert (await client.get(MAPS, namespace, "one"))["data"] == {"b": "3"}
    with pytest.raises(Conflict, match="already exists"):
        await client.create(MAPS, namespace, config_map("one"))
    items, _ = await client.list(MAPS, namespace, labels=f"{KEY}=run")
    assert [item["metadata"]["name"] for item in items] == ["one"]
    await client.delete(MAPS, namespace, "one", uid="0-another-one")
    await client.get(MAPS, namespace, "one")
    await client.delete(MAPS, namespace, "one", uid=made["metadata"]["uid"])
    with pytest.raises(Missing, match='configmaps "one" not found'):
        await client.get(MAPS, namespace, "one")
    await client.delete(MAPS, namespace, "one")
    with pytest.raises(Missing):
        await client.patch(MAPS, namespace, "one", {"data": {}})


async def test_a_list_of_several_pages_is_whole(client: Client, namespace: str) -> None:
    await asyncio.gather(*(client.create(MAPS, namespace, config_map(f"m{i}", "run")) for i in range(7)))
    items, version = await client.list(MAPS, namespace, labels=KEY, limit=3)
    assert [item["metadata"]["name"] for item in items] == [f"m{i}" for i in range(7)]
    assert int(version) > 0


async def test_all_objects_with_a_label_are_deleted_at_once(client: Client, namespace: str) -> None:
    for name, key in (("a", "run"), ("b", "run"), ("c", "other")):
        await client.create(MAPS, namespace, config_map(name, key))
    await client.delete_all(MAPS, namespace, labels=f"{KEY}=run", grace_seconds=0)
    items, _ = await client.list(MAPS, namespace, labels=KEY)
    assert [item["metadata"]["name"] for item in items] == ["c"]


async def test_an_unknown_field_is_refused_when_creating_and_when_changing(
    client: Client, namespace: str
) -> None:
    with pytest.raises(Invalid, match=r'unknown field "spec.paralelism"'):
        await client.create(JOBS, namespace, job(paralelism=2))
    await client.create(JOBS, namespace, job(parallelism=2))
    with pytest.raises(Invalid, match=r'unknown field "spec.paralelism"'):
        await client.patch(JOBS, namespace, "job", {"spec": {"paralelism": 3}})
    with pytest.raises(Invalid, match="immutable"):
        await client.patch(JOBS, namespace, "job", {"spec": {"completionMode": "Indexed"}})
    await client.patch(JOBS, namespace, "job", {"spec": {"parallelism": 3}})
    assert (await client.get(JOBS, namespace, "job"))["spec"]["parallelism"] == 3
    with pytest.raises(Invalid, match=r"spec\.parallelism"):
        await client.patch(JOBS, namespace, "job", {"spec": {"parallelism": -1}})


async def test_a_part_of_an_object_is_read_and_changed(client: Client, namespace: str) -> None:
    sets = Resource("apps", "v1", "replicasets", "ReplicaSet")
    labels = {"app": "x"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "localhost/none:1"}]},
    }
    body = {
        "metadata": {"name": "set"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    await client.create(sets, namespace, body)
    await client.patch(sets, namespace, "set", {"metadata": {"labels": labels}})
    assert (await client.get(sets, namespace, "set", "scale"))["spec"] == {}
    await client.patch(sets, namespace, "set", {"spec": {"replicas": 1}}, "scale")
    assert (await client.get(sets, namespace, "set", "scale"))["spec"]["replicas"] == 1


async def test_a_kind_that_is_not_installed_is_told_with_what_to_install(
    client: Client, namespace: str
) -> None:
    wanted = "widgets.widgets.example.org comes with the widget operator; install that"
    for asked in (
        client.get(WIDGETS, namespace, "one"),
        client.list(WIDGETS, namespace),
        client.create(WIDGETS, namespace, {"metadata": {"name": "one"}}),
    ):
        with pytest.raises(NoSuchKind, match=wanted) as raised:
            await asked
        assert raised.value.is_final
    with pytest.raises(NoSuchKind, match=wanted):
        async with client.watch(WIDGETS, namespace, labels="", version="0", seconds=1):
            pass
    unknown_of_known = Resource("batch", "v1", "widgets", "Widget", needs="the widget operator")
    with pytest.raises(NoSuchKind, match="comes with the widget operator"):
        await client.list(unknown_of_known, namespace)
    assert not await client.knows(WIDGETS)
    assert not await client.knows(unknown_of_known)
    assert await client.knows(JOBS)
    assert await client.knows(PODS)


async def test_a_namespace_that_is_not_there_is_told_and_final(client: Client) -> None:
    with pytest.raises(Invalid, match='namespaces "not-there" not found; create it, or name another'):
        await client.create(MAPS, "not-there", config_map("one"))


async def test_rights_that_are_missing_are_told_with_what_to_grant(
    namespace: str, account: MakeAccount
) -> None:
    poor = await account({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]})
    client = await connect(poor.access)
    try:
        with pytest.raises(
            Forbidden, match=r'cannot create resource "jobs" in API group "batch".*; grant it'
        ) as raised:
            await client.create(JOBS, namespace, job())
        assert raised.value.is_final
        assert "create jobs.batch in namespace" in str(raised.value)
        with pytest.raises(Missing):
            await client.get(MAPS, namespace, "one")
        assert await client.allowed("get", MAPS, namespace)
        assert not await client.allowed("delete", MAPS, namespace)
        with pytest.raises(Forbidden, match="grant it"):
            async with client.watch(MAPS, namespace, labels="", version="0", seconds=1):
                pass
    finally:
        await client.close()


async def test_a_token_that_is_none_is_told(door: Door, account: MakeAccount, namespace: str) -> None:
    real = await account(ALL_OF_MAPS)
    config = real.through(door).content or ""
    token = real.token
    client = await connect(type(real.access)(content=config.replace(token, token[:-8] + "AAAAAAAA")))
    try:
        with pytest.raises(Forbidden, match="log in again") as raised:
            await client.list(MAPS, namespace)
        assert token[:-8] not in str(raised.value)
    finally:
        await client.close()


async def test_a_quota_that_is_used_up_is_waited_for(client: Client, namespace: str) -> None:
    quotas = Resource("", "v1", "resourcequotas", "ResourceQuota")
    await client.create(
        quotas, namespace, {"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "1"}}}
    )
    # A quota holds from when its controller has counted; the namespace has one map of the cluster's own.
    await until_async(lambda: _counted(client, quotas, namespace), "the quota to be counted")
    with pytest.raises(KubeError, match=r"for now.*exceeded quota") as raised:
        await client.create(MAPS, namespace, config_map("one"))
    assert not raised.value.is_final


async def _counted(client: Client, quotas: Resource, namespace: str) -> bool:
    used = (await client.get(quotas, namespace, "q")).get("status", {}).get("used", {})
    return used.get("count/configmaps") == "1"


async def test_a_watch_from_a_time_that_is_forgotten_is_gone(client: Client, namespace: str) -> None:
    """Of events, as their watches are the only ones that no cache answers: a server forgets within 10 minutes."""
    about = {"kind": "Pod", "name": "none", "namespace": namespace}
    await client.create(EVENTS, namespace, {"metadata": {"name": "one"}, "involvedObject": about})
    with contextlib.suppress(Gone):
        async with client.watch(EVENTS, namespace, labels="", version="1", seconds=60) as events:
            await anext(events)
            pytest.skip("the cluster has not forgotten anything yet: 10 minutes after its start it has")


# -- the shared watch --------------------------------------------------------------------------------------------------


def slim(found: dict[str, Any]) -> dict[str, Any]:
    return {found["metadata"]["name"]: found.get("data", {})}


class Follower:
    """What one follower has seen of its key: the data of each object, by name."""

    def __init__(self, shared: Hub, query: Query, key: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self._shown = asyncio.Event()
        self._task = asyncio.create_task(self._follow(shared, query, key))

    async def _follow(self, shared: Hub, query: Query, key: str) -> None:
        try:
            async with contextlib.aclosing(shared.follow(key, query)) as snapshots:
                async for (objects,) in snapshots:
                    self.seen.append({name: data for one in objects for name, data in one.items()})
                    self._shown.set()
        finally:
            self._shown.set()

    async def until(self, wanted: dict[str, Any]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.seen or self.seen[-1] != wanted:
                if self._task.done():
                    await self._task
                await self._shown.wait()
                self._shown.clear()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@contextlib.asynccontextmanager
async def following(access: Any, namespace: str, *keys: str) -> AsyncIterator[list[Follower]]:
    query = Query(MAPS, namespace, KEY, KEY, slim)
    async with hub(access) as shared:
        followers = [Follower(shared, query, key) for key in keys]
        try:
            yield followers
        finally:
            for follower in followers:
                await follower.end()


async def test_two_hundred_followers_each_see_their_own_objects_come_change_and_go(
    client: Client, namespace: str, account: MakeAccount
) -> None:
    keys = [f"run-{i}" for i in range(200)]
    reader = await account(ALL_OF_MAPS)
    await asyncio.gather(*(client.create(MAPS, namespace, config_map(key, key, n="1")) for key in keys))
    async with following(reader.access, namespace, *keys) as followers:
        for key, follower in zip(keys, followers, strict=True):
            await follower.until({key: {"n": "1"}})
        await client.patch(MAPS, namespace, "run-7", {"data": {"n": "2"}})
        await followers[7].until({"run-7": {"n": "2"}})
        await client.create(MAPS, namespace, config_map("second", "run-7"))
        await followers[7].until({"run-7": {"n": "2"}, "second": {}})
        async with following(reader.access, namespace, "run-7", "nobody") as (late, nobody):
            await late.until({"run-7": {"n": "2"}, "second": {}})
            await nobody.until({})
            await client.delete(MAPS, namespace, "run-7")
            await late.until({"second": {}})
        await followers[7].until({"second": {}})
        await client.patch(MAPS, namespace, "second", {"metadata": {"labels": {KEY: None}}})
        await followers[7].until({})
        assert followers[8].seen == [{"run-8": {"n": "1"}}], "others' news are none"


async def test_two_hundred_followers_cost_one_list_and_one_watch(
    client: Client, namespace: str, account: MakeAccount, faults: Faults
) -> None:
    reader = await account(ALL_OF_MAPS)
    keys = [f"run-{i}" for i in range(200)]
    async with following(reader.access, namespace, *keys) as followers:
        for follower in followers:
            await follower.until({})
        await client.create(MAPS, namespace, config_map("one", "run-199"))
        await followers[-1].until({"one": {}})
    lines = faults.audit(user=reader.user).splitlines()
    assert sorted(line.split() for line in lines) == [
        ["1", reader.user, "list", "configmaps"],
        ["1", reader.user, "watch", "configmaps"],
    ]


async def test_in_an_outage_nothing_is_made_up_and_after_it_nothing_is_missing(
    client: Client, namespace: str, account: MakeAccount, door: Door
) -> None:
    reader = await account(ALL_OF_MAPS)
    for name in ("stays", "changes", "goes"):
        await client.create(MAPS, namespace, config_map(name, "run"))
    before = {"stays": {}, "changes": {}, "goes": {}}
    async with following(reader.through(door), namespace, "run") as (follower,):
        await follower.until(before)
        await door.stop()
        async with following(reader.through(door), namespace, "run") as (late,):
            await late.until(before)
        await client.patch(MAPS, namespace, "changes", {"data": {"n": "2"}})
        await client.delete(MAPS, namespace, "goes")
        await client.create(MAPS, namespace, config_map("comes", "run"))
        assert follower.seen == [before]
        await door.start()
        await follower.until({"stays": {}, "changes": {"n": "2"}, "comes": {}})
        assert before in follower.seen
        assert {} not in follower.seen


async def test_a_server_that_cannot_be_reached_yet_is_waited_for(
    client: Client, namespace: str, account: MakeAccount, door: Door
) -> None:
    reader = await account(ALL_OF_MAPS)
    await client.create(MAPS, namespace, config_map("one", "run"))
    await door.stop()
    async with following(reader.through(door), namespace, "run") as (follower,):
        probe = await connect(reader.through(door))
        with pytest.raises(KubeError, match="for now") as raised:
            await probe.get(MAPS, namespace, "one")
        assert not raised.value.is_final
        await probe.close()
        assert follower.seen == []
        await door.start()
        await follower.until({"one": {}})
        assert follower.seen == [{"one": {}}]


async def test_a_server_that_keeps_connections_and_says_nothing_is_noticed(
    client: Client, namespace: str, account: MakeAccount, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(client_module, "SILENCE_SECONDS", 2.0)
    reader = await account(ALL_OF_MAPS)
    await client.create(MAPS, namespace, config_map("one", "run"))
    probe = await connect(reader.through(door))
    await probe.get(MAPS, namespace, "one")
    async with following(reader.through(door), namespace, "run") as (follower,):
        await follower.until({"one": {}})
        door.pause()
        with pytest.raises(KubeError, match="the API server does not answer"):
            await probe.get(MAPS, namespace, "one")
        await client.create(MAPS, namespace, config_map("two", "run"))
        door.resume()
        await follower.until({"one": {}, "two": {}})
    await probe.close()


async def test_a_hub_that_nobody_uses_ends_and_leaves_no_task_and_no_connection(
    namespace: str, account: MakeAccount, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "LINGER_SECONDS", 0.05)
    reader = await account(ALL_OF_MAPS)
    before = open_sessions()
    async with following(reader.through(door), namespace, "run") as (follower,):
        await follower.until({})
        assert len(open_sessions() - before) == 1
        assert door.connections == 1
        ours = {task for task in asyncio.all_tasks() if task.get_name().split()[0] in ("hub", "watch")}
        assert len(ours) == 2
    _, left = await asyncio.wait(ours, timeout=PATIENCE_SECONDS)
    assert not left
    await until_async(lambda: _nobody(door), "the connection to be closed")
    assert open_sessions() <= before


def open_sessions() -> set[aiohttp.ClientSession]:
    gc.collect()
    found = (one for one in gc.get_objects() if type(one) is aiohttp.ClientSession)
    return {session for session in found if not session.closed}


async def _nobody(door: Door) -> bool:
    return door.connections == 0
