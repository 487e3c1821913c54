"""Gangs for Volcano, against its own API: there is no Volcano scheduler behind it here, so nobody starts them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Missing
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.pod import JOB_LABEL
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Waiting
from airflow_elastic.testing.engine_conformance import until
from tests.support import kube
from tests.support.cluster import documented_rights, pod_spec
from tests.support.patience import until_async


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
    job = Job(str(shared_folder / "run"), pod_spec(name, options, "forever.py", workers=workers), 1, 3)
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
        assert [owner["kind"] for owner in group["metadata"]["ownerReferences"]] == [
            engine.kind.resource.kind
        ]

        async def pods() -> list[dict[str, Any]]:
            found, _ = await client.list(PODS, namespace, labels=f"{JOB_LABEL}={job.name}")
            return found if len(found) == 3 else []

        for pod in await until_async(pods, "the pods of all workers"):
            assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == job.name
            assert pod["spec"]["schedulerName"] == "volcano"
    finally:
        await engine.delete(job, 0.0)

    async def gone() -> bool:
        try:
            await client.get(PODGROUPS, namespace, job.name)
        except Missing:
            return True
        return False

    await until_async(gone, "the gang to go with its job")


async def test_without_volcano_it_is_refused_with_what_to_install(
    shared_folder: Path, pod_options: dict[str, Any], client: Client
) -> None:
    if await client.knows(PODGROUPS):
        pytest.skip("remove Volcano's CRDs from the cluster to run this")
    engine = find_engine("job")
    spec = pod_spec("job", {**pod_options, "queueing": "volcano"}, "forever.py")
    with pytest.raises(Exception, match="comes with Volcano; install that"):
        await engine.submit(Job(str(shared_folder / "run"), spec, 1, 2))
