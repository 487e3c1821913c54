"""Gangs for Volcano, against its own API. There is no Volcano behind it here: a test plays the part that matters to it,
and writes what 1.12 and 1.15 were seen to write.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, KubeError
from airflow_elastic.adapters.kube.resources import EVENTS, PODS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Waiting
from airflow_elastic.testing.engine_conformance import until
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights, pod_spec, pods_of
from tests.support.machine.patience import until_async

CLOSED = "can only submit PodGroup to queue with state `Open`, queue `team` status is `Closed`"
LONG = ("--epochs=400", "--step-seconds=0.05")


@pytest.mark.siblings
@pytest.mark.parametrize("name", ["job", "pytorchjob", "trainjob"])
async def test_a_gang_waits_for_its_scheduler_and_goes_with_its_job(
    name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    account: Callable[..., Awaitable[kube.Account]],
) -> None:
    if not await client.knows(PODGROUPS):
        pytest.skip("install Volcano, or its CRD podgroups.scheduling.volcano.sh, in the cluster to run this")
    found = find_engine(name)
    assert isinstance(found, KubeEngine)
    engine = type(found)(access=(await account(*documented_rights(name, "volcano"))).access)
    if not await client.knows(engine.kind.resource):
        pytest.skip(f"install {engine.kind.resource.needs} in the cluster to run this")
    workers = Workers(3, min=2, max=4, resources={"memory": "64Mi", "cpu": "10m"})
    del pod_options["kubeconfig"]  # it has its own
    options = {**pod_options, "queueing": "volcano", "queue": "team"}
    spec = pod_spec(name, options, "faults/forever.py", launcher="torchrun", workers=workers)
    job = Job(str(shared_folder / "run"), spec, 1, 3)
    await engine.submit(job)
    try:
        status = await until(engine, job, lambda status: status.waiting is Waiting.QUEUED)
        assert status.wait is not None
        assert status.wait.reason == "the scheduler volcano has not taken it up yet"
        group = await client.get(PODGROUPS, namespace, job.name)
        assert group["spec"] == {
            "minMember": 2,
            "queue": "team",
            "minResources": {"memory": "128Mi", "cpu": "20m"},
        }
        (owner,) = group["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"]) == (engine.kind.resource.kind, True)

        async def pods() -> list[dict[str, Any]]:
            found, _ = await client.list(PODS, namespace, labels=f"{JOB_LABEL}={job.name}")
            return found if len(found) == 3 else []

        for pod in await until_async(pods, "the pods of all workers"):
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == job.name
            assert pod["spec"]["schedulerName"] == "volcano"
    finally:
        await engine.delete(job, 0.0)

    await kube.gone(client, PODGROUPS, namespace, job.name)


async def test_without_volcano_it_is_refused_with_what_to_install(
    shared_folder: Path, pod_options: dict[str, Any], client: Client
) -> None:
    if await client.knows(PODGROUPS):
        pytest.skip("remove Volcano's CRDs from the cluster to run this")
    engine = find_engine("job")
    spec = pod_spec("job", {**pod_options, "queueing": "volcano"}, "faults/forever.py")
    with pytest.raises(Exception, match="comes with Volcano; install that"):
        await engine.submit(Job(str(shared_folder / "run"), spec, 1, 2))


def told_by_volcano(namespace: str, reason: str, message: str, **of: str) -> dict[str, Any]:
    """An Event as Volcano's scheduler writes it."""
    name = f"{of['name']}.{secrets.token_hex(4)}"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {"namespace": namespace, **of},
        "type": "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": "volcano"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


@pytest.fixture
async def volcano(client: Client) -> None:
    if not await client.knows(PODGROUPS):
        pytest.skip("install Volcano, or its CRD podgroups.scheduling.volcano.sh, in the cluster to run this")


@pytest.mark.usefixtures("volcano")
async def test_a_limit_of_the_queue_is_told_in_its_own_words(
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    account: Callable[..., Awaitable[kube.Account]],
) -> None:
    engine = JobEngine(access=(await account(*documented_rights("job", "volcano"))).access)
    del pod_options["kubeconfig"]
    spec = pod_spec("job", {**pod_options, "queueing": "volcano", "queue": "team"}, "faults/forever.py")
    job = Job(str(shared_folder / "run"), spec, 1, 2)
    await engine.submit(job)
    try:
        await client.patch(PODGROUPS, namespace, job.name, {"status": {"phase": "Pending"}})
        of = {"apiVersion": PODGROUPS.api_version, "kind": PODGROUPS.kind, "name": job.name}
        limit = "queue resource quota insufficient: insufficient nvidia.com/gpu"
        gang = "2/2 tasks in gang unschedulable: pod group is not ready, 2 Pending, 2 minAvailable"
        for message in (limit, gang):
            await client.create(EVENTS, namespace, told_by_volcano(namespace, "Unschedulable", message, **of))
        status = await until(engine, job, lambda status: limit in str(status.wait and status.wait.reason))
        assert status.wait is not None
        assert (status.wait.state, status.wait.workers) == (Waiting.QUEUED, 2)
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.siblings("a queue takes a worker back, or admits some")
@pytest.mark.usefixtures("volcano")
async def test_a_worker_that_volcano_takes_back_is_preempted_at_no_cost(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """As up to 1.12, which sets no condition DisruptionTarget."""
    # Another scheduler places them here, for which a gang is nothing but an annotation.
    options = {**pod_options, "queueing": "volcano", "scheduler": "default-scheduler"}
    async with driving(shared_folder / "run", training("job", options, *LONG)) as driven:
        await driven.at_step(7)
        pod = (await pods_of(driven, client, namespace))[-1]["metadata"]
        evicted = "Pod is evicted, because of preempt"
        of = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        await client.create(EVENTS, namespace, told_by_volcano(namespace, "Evict", evicted, **of))
        await client.delete(PODS, namespace, pod["name"])
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert first.failure is not None
    assert (first.cause, first.failure.kind) == (Cause.PREEMPTION, FailureKind.PREEMPTED)
    assert f"preempted by Volcano: {evicted}" in first.failure.reason
    assert state.restarts_used == 0


@pytest.fixture
def closing(kubectl: kube.Kubectl, namespace: str, tmp_path: Path) -> Iterator[Callable[[bool], None]]:
    """Closes the queue, and opens it: refuses PodGroups as Volcano's webhook does."""
    matched = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    groups = {
        "apiGroups": [PODGROUPS.group],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": [PODGROUPS.plural],
    }
    spec = {
        "matchConstraints": {"namespaceSelector": matched, "resourceRules": [groups]},
        "validations": [{"expression": "false", "message": CLOSED}],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": namespace}}
    policy = {**head, "kind": "ValidatingAdmissionPolicy", "spec": spec}
    bound = {"policyName": namespace, "validationActions": ["Deny"]}
    binding = {**head, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound}
    file = tmp_path / "closed.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}))

    def close(closed: bool = True) -> None:
        if closed:
            kubectl("apply", "-f", str(file))
        else:
            kubectl("delete", "-f", str(file), "--ignore-not-found")

    yield close
    close(False)


@pytest.mark.usefixtures("volcano")
async def test_a_queue_that_was_closed_meanwhile_takes_the_job_when_it_is_open(
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    closing: Callable[[bool], None],
) -> None:
    """The controller tries again; see tests/unit/core/test_held_attempts.py."""
    engine = JobEngine()
    spec = pod_spec("job", {**pod_options, "queueing": "volcano", "queue": "team"}, "faults/forever.py")
    job = Job(str(shared_folder / "run"), spec, 2, 2)
    closing(True)
    await until_async(lambda: _is_closed(client, namespace), "the queue to be closed")
    with pytest.raises(SubmitRefused, match=re.escape(CLOSED)) as refused:
        await engine.submit(job)
    assert refused.value.for_now
    closing(False)

    async def taken() -> bool:
        try:
            await engine.submit(job)
        except SubmitRefused:  # the rule is not gone everywhere at once
            return False
        return True

    try:
        await until_async(taken, "the job to be taken")
        await until(engine, job, lambda status: status.waiting is Waiting.QUEUED)
    finally:
        await engine.delete(job, 0.0)


async def _is_closed(client: Client, namespace: str) -> bool:
    head = {"apiVersion": PODGROUPS.api_version, "kind": PODGROUPS.kind}
    body = {**head, "metadata": {"name": "asked"}, "spec": {"minMember": 1}}
    try:
        await client.create(PODGROUPS, namespace, body)
    except KubeError as error:
        return CLOSED in str(error)
    await client.delete(PODGROUPS, namespace, "asked")
    return False
