"""Gangs of Kubernetes' own, on a cluster that has them: 1.37, with its feature gates on. CONTRIBUTING.md says how."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, KubeError
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines.api import Finding, Job
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.kinds.test_training import lose_a_pod, training
from tests.cluster.test_scaling import PACES, at_pace, scaled
from tests.support.driving import Driven, driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import GPU, QUOTAS, documented_rights, pod_spec, somebody
from tests.support.machine.patience import until_async

ZONE = "topology.kubernetes.io/zone"
MEMORY = "2Gi"  # agents of torchrun keep processes at hand that have imported torch
LONG = ("--epochs=400", "--step-seconds=0.05")


async def keeps(client: Client, namespace: str) -> bool:
    """Whether the API server keeps what a Job says of its gang."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "localhost/base:1"}]}
    spec = {
        "suspend": True,
        "template": {"spec": pod},
        "scheduling": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "asked"}, "spec": spec}
    try:
        made = await client.create(JOBS, namespace, body)
    except KubeError as error:
        if "unknown field" in str(error):
            return False
        raise
    await client.delete(JOBS, namespace, "asked")
    return "scheduling" in made["spec"]


@pytest.fixture
async def gangs(client: Client, namespace: str) -> None:
    if not await keeps(client, namespace):
        pytest.skip("turn on GenericWorkload and WorkloadWithJob, in Kubernetes 1.37, to run this")


@pytest.fixture
async def engine(account: Callable[..., Awaitable[kube.Account]], pod_options: dict[str, Any]) -> JobEngine:
    """With the documented rights, and no more."""
    del pod_options["kubeconfig"]
    return JobEngine(access=(await account(*documented_rights("job", "native"))).access)


def job_of(folder: Path, options: dict[str, Any], workers: Workers, **more: Any) -> Job:
    """A gang that runs until it is ended."""
    told = {**options, "queueing": "native", **more}
    spec = pod_spec("job", told, "faults/forever.py", launcher="torchrun", workers=workers)
    return Job(str(folder / "run"), spec, 1, workers.count)


async def pods_of(client: Client, job: Job) -> list[dict[str, Any]]:
    return (await client.list(PODS, job.spec.engine_options["namespace"], labels=f"{JOB_LABEL}={job.name}"))[
        0
    ]


def are(count: int) -> Callable[[JobStatus], bool]:
    """Whether so many workers run, and others wait for room."""

    def holds(status: JobStatus) -> bool:
        run = [worker for worker in status.workers if worker.phase is WorkerPhase.RUNNING]
        return len(run) == count and status.waiting is Waiting.CAPACITY

    return holds


async def test_where_gangs_are_dropped_nothing_is_started(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str, engine: JobEngine
) -> None:
    if await keeps(client, namespace):
        pytest.skip("the API server keeps what a Job says of its gang")
    job = job_of(shared_folder, pod_options, Workers(2))
    with pytest.raises(
        SubmitRefused, match=r"GenericWorkload and WorkloadWithJob|needs Kubernetes 1\.37"
    ) as refused:
        await engine.submit(job)
    assert refused.value.for_now
    await engine.delete(job, 0.0)
    assert not await pods_of(client, job)
    told = gangs_told(engine, namespace)
    assert not told.ok, told
    assert re.search(r"GenericWorkload and WorkloadWithJob|needs Kubernetes 1\.37", told.text), told


@pytest.mark.usefixtures("gangs")
async def test_doctor_tells_that_jobs_can_be_gangs(client: Client, namespace: str, engine: JobEngine) -> None:
    """With the documented rights; and nothing is made."""
    assert gangs_told(engine, namespace).ok
    assert (await client.list(JOBS, namespace))[0] == []


def gangs_told(engine: JobEngine, namespace: str) -> Finding:
    (told,) = [one for one in engine.doctor(namespace) if one.subject == "job: queueing native"]
    return told


@pytest.mark.usefixtures("gangs")
async def test_a_gang_starts_with_the_fewest_and_grows_as_room_comes(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str, engine: JobEngine
) -> None:
    first = somebody(pod_options["image"], gpus=2)
    await client.create(PODS, namespace, first)
    found = await kube.phase_of(client, PODS, namespace, "somebody", "Running")
    machine = found["spec"]["nodeName"]
    other = somebody(pod_options["image"], gpus=1, nodeName=machine)
    await client.create(PODS, namespace, {**other, "metadata": {"name": "other"}})
    await kube.phase_of(client, PODS, namespace, "other", "Running")
    there = {"node_selector": {"kubernetes.io/hostname": machine}}
    workers = Workers(3, min=2, resources={GPU: "1", "memory": MEMORY})
    job = job_of(shared_folder, pod_options, workers, **there)
    await engine.submit(job)
    try:
        status = await until(engine, job, are(0))
        assert status.wait is not None
        assert "nodes are available" in (status.wait.reason or "")
        assert status.wait.workers == 3, "one would have room, and is not started alone"
        await client.delete(PODS, namespace, "other", grace_seconds=0)
        await until(engine, job, are(2))
        await client.delete(PODS, namespace, "somebody", grace_seconds=0)
        await until(engine, job, running(3))
        gang = (await client.get(JOBS, namespace, job.name))["spec"]["scheduling"]
        assert gang == {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"single": {}}}
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.usefixtures("gangs")
async def test_scaled_down_a_gang_needs_no_more_than_there_are(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str, engine: JobEngine
) -> None:
    """Kubernetes refuses a Job that needs more pods than it has: 422, "must not be greater than parallelism"."""
    job = job_of(shared_folder, pod_options, Workers(3, min=1, resources={"memory": MEMORY}))
    await engine.submit(job)
    try:
        await until(engine, job, running(3))
        more = {"spec": {"scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}}}}
        await client.patch(JOBS, namespace, job.name, more)  # as an administrator may
        await engine.scale(job, 1)
        await until(engine, job, running(1))
        policy = (await client.get(JOBS, namespace, job.name))["spec"]["scheduling"]["schedulingPolicy"]
        assert policy == {"gang": {"minCount": 1}}
        await engine.scale(job, 3)
        await until(engine, job, running(3))
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.slow  # of every commit: those of Jobs that are no gangs
@pytest.mark.usefixtures("gangs")
@pytest.mark.parametrize("pace", PACES)
async def test_steps_at_any_pace_lose_nobody_of_a_gang(
    pace: float, shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    await at_pace(pace, shared_folder, scaled("job", {**pod_options, "queueing": "native"}))


@pytest.mark.usefixtures("gangs")
async def test_a_pod_that_waits_for_its_gang_says_so_and_why_the_others_do_not_come(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str, engine: JobEngine
) -> None:
    quota = {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    await client.create(QUOTAS, namespace, quota)

    async def counted() -> bool:
        return "pods" in (await client.get(QUOTAS, namespace, "one")).get("status", {}).get("used", {})

    await until_async(counted, "the quota to be counted")
    job = job_of(shared_folder, pod_options, Workers(2, resources={"memory": MEMORY}))
    await engine.submit(job)
    try:
        status = await until(
            engine, job, lambda status: "exceeded quota" in str(status.wait and status.wait.reason)
        )
        assert status.waiting is Waiting.QUEUED
        assert "it waits until 2 pods of its gang are there" in str(status.wait)
        await client.patch(QUOTAS, namespace, "one", {"spec": {"hard": {"pods": "2"}}})
        await until(engine, job, running(2))
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.usefixtures("gangs")
async def test_all_of_a_gang_are_put_into_one_zone(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, engine: JobEngine, kubectl: kube.Kubectl
) -> None:
    nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    zones = {node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE) for node in nodes}
    if len({*zones.values()}) < 2 or len(zones) < 3:
        pytest.skip("nodes in two zones, two of them in one, are needed to run this")
    job = job_of(
        shared_folder, pod_options, Workers(2, resources={GPU: "3", "memory": MEMORY}), topology=ZONE
    )
    await engine.submit(job)
    try:
        await until(engine, job, running(2))
        there = {pod["spec"]["nodeName"] for pod in await pods_of(client, job)}
        assert len(there) == 2
        assert len({zones[node] for node in there}) == 1
    finally:
        await engine.delete(job, 0.0)


@pytest.fixture
def urgent(kubectl: kube.Kubectl, namespace: str) -> Iterator[str]:
    """A priority class above all workers."""
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": namespace}}
    kubectl("apply", "-f", "-", stdin=json.dumps({**body, "value": 1000}))
    yield namespace
    kubectl("delete", "priorityclass", namespace, "--wait=false")


@pytest.mark.siblings("preemption of a gang")
@pytest.mark.usefixtures("gangs")
@pytest.mark.parametrize(("least", "taken"), [(3, 3), (1, 1)])
async def test_preemption_takes_a_gang_of_fixed_size_whole_and_others_in_part(
    least: int,
    taken: int,
    shared_folder: Path,
    pod_options: dict[str, Any],
    client: Client,
    namespace: str,
    engine: JobEngine,
    urgent: str,
) -> None:
    """One worker's GPU would do: who can train without it keeps the others."""
    first = somebody(pod_options["image"], gpus=1)
    await client.create(PODS, namespace, first)
    found = await kube.phase_of(client, PODS, namespace, "somebody", "Running")
    there = {"kubernetes.io/hostname": found["spec"]["nodeName"]}
    await client.delete(PODS, namespace, "somebody", grace_seconds=0)
    workers = Workers(3, min=least, resources={GPU: "1", "memory": MEMORY})
    job = job_of(shared_folder, pod_options, workers, node_selector=there)
    await engine.submit(job)
    try:
        await until(engine, job, running(3))
        other = somebody(pod_options["image"], gpus=2, nodeSelector=there, priorityClassName=urgent)
        # Watched meanwhile: pods that are gone tell nothing.
        seen = asyncio.create_task(until(engine, job, lambda status: len(preempted(status)) >= taken))
        await asyncio.sleep(0)
        await client.create(PODS, namespace, {**other, "metadata": {"name": "urgent"}})
        status = await seen
        await kube.phase_of(client, PODS, namespace, "urgent", "Running")
        assert len(preempted(status)) == taken
        assert "preempting to accommodate a higher priority pod" in str(preempted(status)[0].reason)
    finally:
        await engine.delete(job, 0.0)


def preempted(status: JobStatus) -> list[WorkerStatus]:
    return [worker for worker in status.workers if worker.preempted]


@pytest.fixture
def given_by_administrators(
    gangs: None, kubectl: kube.Kubectl, namespace: str, tmp_path: Path
) -> Iterator[None]:
    """A rule by which each Job of the namespace is a gang, and says nothing of how many pods that needs."""
    matched = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    jobs = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    patch = '[JSONPatch{op: "add", path: "/spec/scheduling", value: {"schedulingPolicy": {"gang": {}}}}]'
    spec = {
        "matchConstraints": {"namespaceSelector": matched, "resourceRules": [jobs]},
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": namespace}}
    policy = {**head, "kind": "MutatingAdmissionPolicy", "spec": spec}
    binding = {**head, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": namespace}}
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}))
    kubectl("apply", "-f", str(file))
    yield
    kubectl("delete", "-f", str(file), "--wait=false")


async def _goes_on(driven: Driven) -> None:
    await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
    from_step = await driven.gone_on()
    await driven.at_step(from_step + 3)
    driven.run.ask_stop(by="test")


@pytest.mark.siblings("a worker of a gang is lost")
@pytest.mark.usefixtures("gangs")
async def test_a_lost_worker_of_a_gang_is_replaced_in_its_job(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    options = {**pod_options, "queueing": "native"}
    spec = training("job", options, *LONG)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        await lose_a_pod(driven, client, namespace)
        await _goes_on(driven)
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.attempts[1].home) == ("stopped", 2, 1)


async def are_gangs(client: Client, namespace: str) -> None:
    """Wait until the rule is at work."""
    body = {
        "metadata": {"name": "asked"},
        "spec": {
            "suspend": True,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}
            },
        },
    }

    async def at_work() -> bool:
        made = await client.create(JOBS, namespace, body)
        await client.delete(JOBS, namespace, "asked", propagation="Background")
        return "gang" in made["spec"].get("scheduling", {}).get("schedulingPolicy", {})

    await until_async(at_work, "the rule to be at work")


@pytest.mark.siblings("a worker of a gang is lost")
@pytest.mark.usefixtures("given_by_administrators")
async def test_a_lost_worker_of_a_gang_that_others_have_made_is_followed_by_a_new_job(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """In the same job it would wait for ever: the gang follows the job's size, and a failed pod is none of it."""
    await are_gangs(client, namespace)
    async with driving(shared_folder / "run", training("job", pod_options, *LONG)) as driven:
        await driven.at_step(7)
        await lose_a_pod(driven, client, namespace)
        await _goes_on(driven)
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.attempts[1].home) == ("stopped", 2, None)
