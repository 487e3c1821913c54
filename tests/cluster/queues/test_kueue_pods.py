"""Plain pods in the queues of a real Kueue: those that DLRover's real master makes for an ElasticJob."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube import leftovers
from airflow_elastic.engines.kube.kinds.elasticjob import ELASTICJOBS, NAME_LABEL, ElasticJobEngine
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes import dlrover, kube
from tests.support.kubernetes.cluster import documented_rights, pod_spec
from tests.support.kubernetes.kueue import GPU, QUEUE, a_queue, queued, urgent, words_of
from tests.support.machine.patience import until_async

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
async def queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    async with a_queue(namespace, client, kubectl) as made:
        yield made


class Elastic:
    """ElasticJobs of two workers that run until they are ended."""

    def __init__(self, client: Client, options: dict[str, Any], folder: Path) -> None:
        self.engine, self.client, self.options, self.folder = ElasticJobEngine(), client, options, folder
        self.namespace = str(options["namespace"])

    def job(self, number: int, **more: Any) -> Job:
        workers = Workers(2, resources={GPU: "1", "cpu": "100m", "memory": "64Mi"})
        options = {**self.options, "queue": QUEUE, **more}
        uri = str(self.folder / f"run-{number}")
        return Job(uri, pod_spec("elasticjob", options, "faults/forever.py", workers=workers), 1, 2)

    async def gone(self, job: Job) -> None:
        """End it: nothing of it stays, and nothing waits for pods in place of those that went."""
        await self.engine.delete(job, 0.0)

        async def left() -> bool:
            pods, _ = await self.client.list(PODS, self.namespace, labels=f"{NAME_LABEL}={job.name}")
            workloads, _ = await self.client.list(WORKLOADS, self.namespace)
            return not pods and job.name not in {one["metadata"]["name"] for one in workloads}

        await until_async(left, "pods and Workload to go")


@pytest.fixture
async def elastic(
    client: Client,
    namespace: str,
    account: Callable[..., Awaitable[kube.Account]],
    pod_options: dict[str, Any],
    shared_folder: Path,
) -> AsyncIterator[Elastic]:
    python = os.environ.get(dlrover.PYTHON)
    if not python or not await client.knows(ELASTICJOBS):
        pytest.skip(f"install the CRD of ElasticJobs; {dlrover.NEEDED}")
    master = await account(*documented_rights("elasticjob, master"))
    async with dlrover.operating(client, namespace):
        yield Elastic(client, {**pod_options, **dlrover.options(python, master)}, shared_folder)


async def test_workers_wait_together_with_the_queues_own_words_and_then_run(
    elastic: Elastic, account: Callable[..., Awaitable[kube.Account]]
) -> None:
    rights = documented_rights("elasticjob", "kueue", "kueue, elasticjob")
    elastic.engine = engine = ElasticJobEngine(access=(await account(*rights)).access)
    del elastic.options["kubeconfig"]
    first, second = elastic.job(1), elastic.job(2)
    await engine.submit(first)
    await until(engine, first, running(2))
    await engine.submit(second)
    status = await until(engine, second, lambda status: queued(status) and "unused" in words_of(status))
    assert f"insufficient unused quota for {GPU}" in words_of(status)
    await elastic.gone(first)
    await until(engine, second, running(2))
    await elastic.gone(second)


async def test_workers_that_are_preempted_are_no_failure_and_the_next_ones_wait(
    elastic: Elastic, queue: str, access: Access
) -> None:
    engine, first = elastic.engine, elastic.job(1, queue_priority=f"low-{queue}")
    await engine.submit(first)
    await until(engine, first, running(2))
    await elastic.client.create(JOBS, elastic.namespace, urgent(queue, str(elastic.options["image"])))
    status = await until(engine, first, lambda status: status.failed and status.settled)
    failure = classify(status)
    assert failure is not None
    assert failure.kind is FailureKind.PREEMPTED
    assert "Preempted to accommodate a workload" in failure.reason
    await elastic.gone(first)
    second = elastic.job(2, queue_priority=f"low-{queue}")
    await engine.submit(second)
    await until(engine, second, lambda status: queued(status) and "unused" in words_of(status))
    (left,) = await leftovers.find(access, elastic.namespace)
    await leftovers.remove(access, left)  # which has never been admitted
    await elastic.gone(second)
