"""Jobs in the queues of a real Kueue: waiting is not failing, and to be taken back costs no restart."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.adapters.kube.resources import JOBS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.test_training import training
from tests.support import kube
from tests.support.cluster import documented_rights, pod_spec
from tests.support.driving import driving

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE = "team"
GPU = "nvidia.com/gpu"


def of(plural: str, kind: str) -> Resource:
    return Resource(GROUP, VERSION, plural, kind)


FLAVORS = of("resourceflavors", "ResourceFlavor")
CLUSTER_QUEUES = of("clusterqueues", "ClusterQueue")
PRIORITIES = of("workloadpriorityclasses", "WorkloadPriorityClass")
QUEUES = of("localqueues", "LocalQueue")


@pytest.fixture(autouse=True)
async def queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    """A queue of this test's own, with room for 2 GPUs, and the priorities `low-…` and `high-…` (the suffix)."""
    if not await client.knows(QUEUES):
        pytest.skip("install Kueue in the cluster to run this")
    own = f"t-{secrets.token_hex(3)}"
    covered = [{"name": GPU, "nominalQuota": "2"}, {"name": "memory", "nominalQuota": "64Gi"}]
    groups = [
        {
            "coveredResources": [one["name"] for one in covered],
            "flavors": [{"name": own, "resources": covered}],
        }
    ]
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": groups,
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    everywhere = [
        _body(FLAVORS, own, spec={}),
        _body(CLUSTER_QUEUES, own, spec=spec),
        _body(PRIORITIES, f"low-{own}", value=10),
        _body(PRIORITIES, f"high-{own}", value=1000),
    ]
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(_list(everywhere)))
    await client.create(QUEUES, namespace, _body(QUEUES, QUEUE, spec={"clusterQueue": own}))
    yield own
    for body in reversed(everywhere):
        kubectl("delete", "--wait=false", f"{body['kind']}.{VERSION}.{GROUP}", body["metadata"]["name"])


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _body(resource: Resource, name: str, **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        **rest,
    }


def job_of(engine: str, options: dict[str, Any], uri: Path, gpus: str = "1", **more: str) -> Job:
    """Two workers that run until they are ended."""
    spec = pod_spec(
        engine,
        {**options, "queue": QUEUE, **more},
        "forever.py",
        workers=Workers(2, min=1, max=4, resources={GPU: gpus, "memory": "64Mi"}),
    )
    return Job(str(uri), spec, 1, 2)


def engine_of(name: str) -> KubeEngine:
    found = find_engine(name)
    assert isinstance(found, KubeEngine)
    return found


async def installed(client: Client, engine: KubeEngine) -> None:
    if not await client.knows(engine.kind.resource):
        pytest.skip(f"install {engine.kind.resource.needs} in the cluster to run this")


def queued(status: JobStatus) -> bool:
    return status.waiting is Waiting.QUEUED and not status.failed


@pytest.mark.parametrize("name", ["job", "pytorchjob"])
async def test_it_waits_for_room_with_the_queues_own_words_and_then_runs(
    name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    client: Client,
    account: Callable[..., Awaitable[kube.Account]],
) -> None:
    await installed(client, engine_of(name))
    engine = type(engine_of(name))(access=(await account(*documented_rights(name, "kueue"))).access)
    del pod_options["kubeconfig"]  # it has its own
    first, second = (job_of(name, pod_options, shared_folder / each) for each in ("first", "second"))
    await engine.submit(first)
    try:
        await until(engine, first, running(2))
        await engine.submit(second)
        status = await until(engine, second, lambda status: queued(status) and "unused" in _words(status))
        assert f"insufficient unused quota for {GPU}" in _words(status)
        assert [worker.phase for worker in status.workers] == [WorkerPhase.PENDING] * 2
        await engine.delete(first, 0.0)
        await until(engine, second, running(2))
    finally:
        for job in (first, second):
            await engine.delete(job, 0.0)


def _words(status: JobStatus) -> str:
    return str(status.wait.reason) if status.wait else ""


@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        ("1", {"queue": "nope"}, "LocalQueue nope doesn't exist"),
        ("64", {}, r"> maximum capacity"),
    ],
)
async def test_what_can_never_be_admitted_is_told_within_seconds(
    gpus: str, more: dict[str, str], words: str, shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    engine = engine_of("job")
    job = job_of("job", pod_options, shared_folder / "run", gpus, **more)
    await engine.submit(job)
    try:
        await until(engine, job, lambda status: queued(status) and words in _words(status))
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.parametrize("name", ["job", pytest.param("pytorchjob", marks=pytest.mark.slow)])
async def test_a_training_that_is_preempted_saves_waits_and_goes_on_at_no_cost(
    name: str,
    queue: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
) -> None:
    await installed(client, engine_of(name))
    options = {**pod_options, "queue": QUEUE, "queue_priority": f"low-{queue}"}
    workers = Workers(2, resources={GPU: "1", "memory": "3Gi"})
    spec = training(name, options, "--epochs=400", "--step-seconds=0.05", workers=workers)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        await client.create(JOBS, namespace, _urgent(queue, pod_options["image"]))
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.PREEMPTION, FailureKind.PREEMPTED)
        assert "Preempted to accommodate a workload" in first.failure.reason
        saved = driven.state.checkpoint
        assert saved is not None
        assert first.progress is not None
        assert saved.step == first.progress.step, "it lost steps although it had been warned"
        await driven.until(lambda: _waits(driven.run.status()["waiting"]), "the queue")
        await client.delete(JOBS, namespace, "urgent", grace_seconds=0)
        await driven.at_step(saved.step + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 0)
    assert state.attempts[1].from_step == saved.step


def _waits(wait: Any) -> bool:
    return wait is not None and wait["state"] == "queued"


def _urgent(queue: str, image: str) -> dict[str, Any]:
    """Somebody's job of a higher priority, which takes both GPUs."""
    resources = {"requests": {GPU: "2"}, "limits": {GPU: "2"}}
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", "9999"],
        "resources": resources,
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    labels = {
        "kueue.x-k8s.io/queue-name": QUEUE,
        "kueue.x-k8s.io/priority-class": f"high-{queue}",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "urgent", "labels": labels},
        "spec": {"template": {"spec": pod}},
    }
