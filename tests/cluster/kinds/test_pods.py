"""Pods with more in them than the container that trains, and pods that wait or end by no doing of their containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import JobStatus, Waiting
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes.cluster import pod_spec
from tests.support.machine.patience import until_async


@pytest.fixture
def uri(shared_folder: Path) -> str:
    return str(shared_folder / "run")


def job_of(uri: str, options: dict[str, Any], *command: str, **pod: Any) -> Job:
    """One worker, whose pod has these fields, too."""
    over = {**options, "pod_template": {"spec": pod}}
    return Job(uri, pod_spec("job", over, *command, workers=Workers(1)), 1, 1)


def beside(options: dict[str, Any], name: str, script: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": options["image"], "command": ["sh", "-c", script], **fields}


async def test_native_sidecars_and_init_containers_end_with_their_pod(
    uri: str, pod_options: dict[str, Any], client: Client
) -> None:
    """Nobody has to remove such a job: it is complete."""
    native = beside(pod_options, "native", "sleep 9999", restartPolicy="Always")
    init = beside(pod_options, "init", "true")
    engine = JobEngine()
    job = job_of(uri, pod_options, "faults/leave.py", "code", "0", initContainers=[init, native])
    await engine.submit(job)
    await until(engine, job, lambda status: status.succeeded)
    await engine.delete(job, 3.0)

    async def complete() -> bool:
        found = await client.get(JOBS, pod_options["namespace"], job.name)
        return any(c["type"] == "Complete" for c in found.get("status", {}).get("conditions", ()))

    await until_async(complete, "the Job to be complete")


@pytest.mark.slow
async def test_a_container_that_fails_beside_the_training_one_ends_nobody(
    uri: str, pod_options: dict[str, Any], client: Client
) -> None:
    failing = beside(pod_options, "failing", "exit 3")
    engine, job = JobEngine(), job_of(uri, pod_options, "faults/forever.py", containers=[failing])
    await engine.submit(job)

    async def failed() -> bool:
        pods, _ = await client.list(PODS, pod_options["namespace"], labels=f"airflow-elastic/job={job.name}")
        found = [c for pod in pods for c in pod["status"].get("containerStatuses", ())]
        return any(c["name"] == "failing" and "terminated" in c["state"] for c in found)

    await until(engine, job, running(1))
    await until_async(failed, "the container beside the one that trains to fail")
    await until(engine, job, running(1))
    await engine.delete(job, 0.0)


def says(*words: str) -> Any:
    def holds(status: JobStatus) -> bool:
        return all(word in str(status.wait and status.wait.reason) for word in words)

    return holds


@pytest.mark.parametrize(
    ("pod", "waiting", "words"),
    [
        (
            {"initContainers": [{"name": "fetch", "image": "no/such:1", "imagePullPolicy": "Never"}]},
            Waiting.PULLING,
            ("init container fetch", "ErrImageNeverPull"),
        ),
        (
            {
                "volumes": [{"name": "s", "secret": {"secretName": "no-such"}}],
                "containers": [{"name": "trainer", "volumeMounts": [{"name": "s", "mountPath": "/s"}]}],
            },
            Waiting.STARTING,
            ("FailedMount", "no-such"),
        ),
        pytest.param(
            {"containers": [{"name": "trainer", "envFrom": [{"secretRef": {"name": "no-such"}}]}]},
            Waiting.STARTING,
            ("CreateContainerConfigError", "no-such"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"initContainers": [{"name": "wait", "image": "IMAGE", "command": ["sleep", "9999"]}]},
            Waiting.STARTING,
            ("init container wait is running",),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "no-such"}}]},
            Waiting.CAPACITY,
            ("no-such",),
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_what_a_pod_waits_for_is_told(
    uri: str, pod_options: dict[str, Any], pod: dict[str, Any], waiting: Waiting, words: tuple[str, ...]
) -> None:
    for one in pod.get("initContainers", ()):
        one["image"] = one["image"].replace("IMAGE", pod_options["image"])
    engine, job = JobEngine(), job_of(uri, pod_options, "faults/forever.py", **pod)
    await engine.submit(job)
    try:
        status = await until(engine, job, says(*words))
        assert status.waiting is waiting
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.slow
async def test_a_pod_that_uses_more_than_its_own_limit_is_evicted_and_told(
    uri: str, pod_options: dict[str, Any]
) -> None:
    full = "head -c 3000000 /dev/zero > /scratch/full; sleep 9999"
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    filler = beside(pod_options, "filler", full, volumeMounts=mounts)
    volumes = [{"name": "scratch", "emptyDir": {"sizeLimit": "1M"}}]
    engine = JobEngine()
    job = job_of(uri, pod_options, "faults/forever.py", containers=[filler], volumes=volumes)
    await engine.submit(job)
    try:
        failure = classify(await until(engine, job, lambda status: status.failed))
    finally:
        await engine.delete(job, 0.0)
    assert failure is not None
    assert failure.kind is FailureKind.OVER_LIMIT
    assert 'Usage of EmptyDir volume "scratch" exceeds the limit' in failure.reason


@pytest.mark.slow
async def test_a_failed_init_container_leaves_its_output(uri: str, pod_options: dict[str, Any]) -> None:
    init = beside(pod_options, "fetch", "echo no such bucket; exit 7")
    engine, job = JobEngine(), job_of(uri, pod_options, "faults/forever.py", initContainers=[init])
    await engine.submit(job)
    failure = classify(await until(engine, job, lambda status: status.failed))
    await engine.delete(job, 0.0)
    assert failure is not None
    assert (failure.kind, failure.exit_code) == (FailureKind.CODE_ERROR, 7)
    (kept,) = (Path(uri) / "logs/attempt-0001").glob("pod-*-fetch.log")
    assert kept.read_text() == "no such bucket\n"
