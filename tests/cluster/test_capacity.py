"""The room that is counted is the room that a real scheduler finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import EngineError, InvalidInput
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights, pod_spec
from tests.support.kubernetes.kueue import GPU, QUEUE, a_queue
from tests.support.machine.patience import until_async


def spec_of(options: dict[str, Any], **resources: str) -> RunSpec:
    return pod_spec("job", options, "faults/forever.py", workers=Workers(2, resources=resources))


def engine() -> KubeEngine:
    found = find_engine("job")
    assert isinstance(found, KubeEngine)
    return found


async def test_as_many_pods_are_placed_as_there_is_room_for(
    namespace: str, client: Client, pod_options: dict[str, Any]
) -> None:
    """Each asks for a third of a node, so that what is left of the nodes differs."""
    spec = spec_of({**pod_options, "namespace": namespace}, memory="7Gi")
    room = await engine().room(spec)
    assert room.workers, str(room)
    assert [limit.name for limit in room.limits] == ["nodes"], "this namespace has no quota"
    container = {"name": "c", "image": "any", "resources": {"requests": {"memory": "7Gi"}}}
    for number in range(room.workers + 1):
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}"},
            "spec": {"containers": [container]},
        }
        await client.create(PODS, namespace, body)

    async def all_looked_at() -> list[str] | None:
        pods, _ = await client.list(PODS, namespace)
        said = [
            one["status"]
            for pod in pods
            for one in pod["status"].get("conditions", ())
            if one["type"] == "PodScheduled"
        ]
        return said if len(said) == len(pods) else None

    placed = await until_async(all_looked_at, "the scheduler to have looked at each pod")
    assert sorted(placed) == ["False", *["True"] * room.workers], str(room)
    assert (await engine().room(spec)).workers == 0


async def test_the_quota_of_a_queue_counts(
    namespace: str, client: Client, kubectl: kube.Kubectl, pod_options: dict[str, Any]
) -> None:
    async with a_queue(namespace, client, kubectl) as own:
        options = {**pod_options, "namespace": namespace, "queue": QUEUE}
        room = await engine().room(spec_of(options, **{GPU: "1", "memory": "512Mi"}), limits=["queue"])
        assert room.workers == 2
        assert own in str(room)
        with pytest.raises(InvalidInput, match="nonesuch"):
            await engine().room(spec_of({**options, "queue": "nonesuch"}, memory="1Gi"))


async def test_rights_that_are_missing_are_named_and_the_documented_ones_are_enough(
    account: Callable[..., Awaitable[kube.Account]],
    kubectl: kube.Kubectl,
    pod_options: dict[str, Any],
    namespace: str,
) -> None:
    del pod_options["kubeconfig"]  # it has its own
    theirs = await account()
    poor = type(engine())(access=theirs.access)
    spec = spec_of(pod_options, memory="1Gi")
    with pytest.raises(EngineError, match=r"`list nodes`.*limits=\['quotas', 'queue'\]"):
        await poor.room(spec)
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": namespace},
        "rules": documented_rights("room"),
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(role))
    try:
        whose = f"--serviceaccount={namespace}:{theirs.name}"
        kubectl("create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", whose)
        assert (await poor.room(spec)).workers
    finally:
        kubectl("delete", "clusterrolebinding,clusterrole", namespace, "--ignore-not-found")


async def test_the_connections_test_names_who_lacks_what_and_the_room_in_the_queue(
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def button(**extra: str) -> tuple[bool, str]:
        given = {"run_root": str(tmp_path), "engine": "job", "namespace": namespace, **extra}
        monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_ROOM", json.dumps({"conn_type": "elastic", "extra": given}))
        return ElasticHook("elastic_room").test_connection()

    async with a_queue(namespace, client, kubectl) as own:
        passed, text = await asyncio.to_thread(button, queue=QUEUE)
        assert passed, text
        assert f"all that are needed in namespace {namespace}" in text
        assert f"ok queue {QUEUE}: " in text
        assert own in text
        passed, text = await asyncio.to_thread(button, queue="nonesuch")
        assert not passed
        assert "NOT OK queue nonesuch: engine_options.queue: " in text
