"""The room that is counted is the room that a real scheduler finds, and who waits for it is named."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.capacity.queues.limits import COHORTS
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.hooks import ElasticHook
from airflow_elastic.spec.errors import EngineError, InvalidInput
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.observation import Capacity, Claim
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights, pod_spec
from tests.support.kubernetes.kueue import CLUSTER_QUEUES, GPU, QUEUE, a_queue, body_of, urgent
from tests.support.machine.patience import until_async


@pytest.fixture(autouse=True)
async def quiet(kubectl: kube.Kubectl) -> None:
    """Namespaces of earlier tests are gone with their pods, whose room would come back in the middle of a test."""
    ending = ("get", "namespaces", "--field-selector=status.phase=Terminating", "--output=name")
    await until_async(lambda: not kubectl(*ending).strip(), "namespaces of earlier tests to be gone")


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


@contextlib.asynccontextmanager
async def started(spec: RunSpec, folder: Path) -> AsyncIterator[Job]:
    """A job whose two workers run."""
    job = Job(str(folder / "run"), spec, 1, 2)
    try:
        await engine().submit(job)
        await until(engine(), job, running(2))
        yield job
    finally:
        await engine().delete(job, 0.0)
        await engine().close(job)


async def claims_of(job: Job) -> dict[str, int]:
    return {claim.name: claim.workers for claim in (await engine().capacity(job)).claims}


async def test_pods_of_a_higher_priority_and_cordoned_nodes_claim_workers(
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
    pod_options: dict[str, Any],
    shared_folder: Path,
) -> None:
    """Workers take a third of a node each, and others what is left."""
    spec = spec_of({**pod_options, "namespace": namespace}, memory="7Gi")
    async with started(spec, shared_folder) as job:
        before = await engine().capacity(job)
        assert before.free, before.text
        assert before.free == (await engine().room(spec)).workers
        assert sum(before.pools.values()) == before.free
        assert before.claims == ()
        container = {"name": "c", "image": "any", "resources": {"requests": {"memory": "7Gi"}}}
        body = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}
        for number in range(before.free):
            await client.create(PODS, namespace, {**body, "metadata": {"name": f"p{number}"}})
        full = await engine().capacity(job)
        assert (full.free, full.claims) == (0, ()), "also while the scheduler has not placed them"
        highest = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": namespace},
            "value": 1000,
            "preemptionPolicy": "Never",
        }
        kubectl("apply", "-f", "-", stdin=json.dumps(highest))
        try:
            high = {"containers": [container], "priorityClassName": namespace}
            await client.create(PODS, namespace, {**body, "spec": high, "metadata": {"name": "urgent"}})

            async def claimed() -> dict[str, int] | None:
                return await claims_of(job) or None

            assert await until_async(claimed, "a claim") == {f"pod {namespace}/urgent": 1}
            await client.delete(PODS, namespace, "urgent", grace_seconds=0)
            assert await claims_of(job) == {}
        finally:
            kubectl("delete", "priorityclass", namespace)
        status = await until(engine(), job, running(2))
        node = status.workers[0].node
        assert node is not None
        kubectl("cordon", node)
        try:
            there = sum(worker.node == node for worker in status.workers)
            assert await claims_of(job) == {f"node {node} (it is cordoned)": there}
        finally:
            kubectl("uncordon", node)
        assert await claims_of(job) == {}


async def test_a_workload_of_a_higher_priority_claims_quota(
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
    pod_options: dict[str, Any],
    shared_folder: Path,
) -> None:
    async with a_queue(namespace, client, kubectl) as own:
        waits = {"spec": {"preemption": {"withinClusterQueue": "Never"}}}
        await client.patch(CLUSTER_QUEUES, "", own, waits)
        options = {**pod_options, "namespace": namespace, "queue": QUEUE, "queue_priority": f"low-{own}"}
        spec = spec_of(options, **{GPU: "1", "memory": "512Mi"})
        async with started(spec, shared_folder) as job:

            async def full() -> Capacity | None:  # a ClusterQueue's status comes a moment later
                seen = await engine().capacity(job)
                return seen if seen.free == 0 else None

            found: Capacity = await until_async(full, "a full queue")
            assert (found.claims, found.priority) == ((), 10), found.text
            image = str(pod_options["image"])
            await client.create(JOBS, namespace, urgent(own, image))

            async def claimed() -> Claim | None:
                return next(iter((await engine().capacity(job)).claims), None)

            claim = await until_async(claimed, "a claim")
            assert (claim.workers, claim.priority) == (2, 1000)
            assert claim.name.startswith(f"workload {namespace}/job-urgent")
            await client.delete(JOBS, namespace, "urgent")


async def test_kueue_admits_as_many_as_are_counted_with_what_cohorts_lend(
    namespace: str, client: Client, kubectl: kube.Kubectl, pod_options: dict[str, Any]
) -> None:
    """The queue has 2 GPUs, its cohort 2 more and may borrow 1, of what the cohort beside it lends (1) and the root."""
    async with a_queue(namespace, client, kubectl) as own:

        def quota(amount: int, **limits: str) -> list[dict[str, Any]]:
            resources = [{"name": GPU, "nominalQuota": str(amount), **limits}]
            return [{"coveredResources": [GPU], "flavors": [{"name": own, "resources": resources}]}]

        beside = body_of(
            CLUSTER_QUEUES, f"{own}-b", spec={"cohortName": f"{own}-d", "resourceGroups": quota(3)}
        )
        cohorts = [
            body_of(COHORTS, f"{own}-root", spec={"resourceGroups": quota(1)}),
            body_of(
                COHORTS,
                f"{own}-c",
                spec={"parentName": f"{own}-root", "resourceGroups": quota(2, borrowingLimit="1")},
            ),
            body_of(
                COHORTS,
                f"{own}-d",
                spec={"parentName": f"{own}-root", "resourceGroups": quota(0, lendingLimit="1")},
            ),
        ]
        everything = {"apiVersion": "v1", "kind": "List", "items": [*cohorts, beside]}
        kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(everything))
        try:
            await client.patch(CLUSTER_QUEUES, "", own, {"spec": {"cohortName": f"{own}-c"}})
            spec = spec_of({**pod_options, "namespace": namespace, "queue": QUEUE}, **{GPU: "1"})
            counted = (await engine().room(spec, limits=["queue"])).workers
            assert counted == 5
            image = str(pod_options["image"])
            for number in range(counted + 2):
                await client.create(JOBS, namespace, one_gpu(f"j{number}", image))

            async def all_looked_at() -> list[bool] | None:
                jobs, _ = await client.list(JOBS, namespace)
                workloads, _ = await client.list(WORKLOADS, namespace)
                told = [quota_of(one) for one in workloads]
                said = [one for one in told if one is not None]
                return said if len(said) == len(jobs) else None

            admitted = await until_async(all_looked_at, "Kueue to have looked at each job")
            assert sum(admitted) == counted

            async def used_up() -> bool | None:  # a ClusterQueue's status comes a moment later
                return (await engine().room(spec, limits=["queue"])).workers == 0 or None

            await until_async(used_up, "no room")
        finally:
            kubectl("delete", "--wait=false", "clusterqueue", f"{own}-b")
            for one in cohorts:
                kubectl(
                    "delete",
                    "--wait=false",
                    f"cohorts.{COHORTS.version}.{COHORTS.group}",
                    one["metadata"]["name"],
                )


def one_gpu(name: str, image: str) -> dict[str, Any]:
    """Somebody's job in the queue."""
    body = urgent("", image)
    limits = {GPU: "1"}
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": limits, "limits": limits}
    return {**body, "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": QUEUE}}}


def quota_of(workload: dict[str, Any]) -> bool | None:
    """Whether a workload is admitted; None while Kueue has not said."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return next((one["status"] == "True" for one in conditions if one["type"] == "QuotaReserved"), None)


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
    unknown = await poor.capacity(Job("s3://bucket/run", spec, 1, 2))
    assert unknown.free is None
    assert "Grant `list nodes` and `list pods`" in unknown.text
    assert "Grant `list resourcequotas`" in unknown.text
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
        assert (await poor.capacity(Job("s3://bucket/run", spec, 1, 2))).free
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
