"""TrainJobs on a real cluster with the Kubeflow Trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Missing
from airflow_elastic.adapters.kube.resources import JOBS, PODS, Resource
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.trainjob import RUNTIMES, TRAINJOBS
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.support import kube
from tests.support.cluster import ClusterEngine

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")


@pytest.fixture(autouse=True)
async def trainer(client: Client) -> None:
    if not await client.knows(TRAINJOBS):
        pytest.skip("install the Kubeflow Trainer in the cluster to run this")


class TestTrainJob(ClusterEngine):
    engine_name = "trainjob"

    @property
    def namespace(self) -> str:
        return str(self.options["namespace"])

    async def uids(self, client: Client, job: Job) -> dict[str, str]:
        """Of all pods of the job, by name."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await self.pods(client, job)}

    async def exists(self, client: Client, resource: Resource, name: str) -> bool:
        try:
            return bool(await client.get(resource, self.namespace, name))
        except Missing:
            return False

    # -- who decides ---------------------------------------------------------------------------------------------

    async def test_the_operator_replaces_no_pod(self, engine: KubeEngine, uri: str, client: Client) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            before = await self.uids(client, job)
            await client.delete(PODS, self.namespace, max(before), grace_seconds=0)
            await until(engine, job, lambda status: status.failed)
            await asyncio.sleep(12)  # with a back-off limit the replacement came after 4 to 9 s
            assert set((await self.uids(client, job)).values()) < set(before.values())

    async def test_a_job_made_anew_brings_no_worker_to_life(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """JobSet makes its Jobs anew; their pods find that the workers have had their lives."""
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))

            async def both() -> bool:
                return len(await asyncio.to_thread(lambda: [*Path(uri).rglob("agent-*.json")])) == 2

            await kube.until(both, "both workers to begin their lives")
            before = await self.uids(client, job)
            await client.delete(JOBS, self.namespace, engine.child.name(job) if engine.child else "")

            async def ended() -> bool:
                pods = [pod for pod in await self.pods(client, job) if pod["metadata"]["name"] not in before]
                return len(pods) == 2 and {pod["status"]["phase"] for pod in pods} == {"Failed"}

            await kube.until(ended, "both new pods to end")
            status = await until(engine, job, lambda status: not status.phases() & {WorkerPhase.RUNNING})
        assert {worker.phase for worker in status.workers} == {WorkerPhase.LOST}
        assert "has one life" in str(status.workers[0].reason)

    async def test_one_failure_leaves_the_others_running(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            before = await self.uids(client, job)
            await client.delete(PODS, self.namespace, max(before), grace_seconds=0)
            status = await until(engine, job, lambda status: status.failed)
            await asyncio.sleep(5)
            status = await until(engine, job, lambda status: True)
        assert [worker.phase for worker in status.workers] == [WorkerPhase.RUNNING, WorkerPhase.LOST]

    # -- the end -------------------------------------------------------------------------------------------------

    def light(self, uri: str, attempt: int) -> Job:
        """An attempt whose pods cost nothing."""
        sleeping = {"spec": {"containers": [{"name": "node", "command": ["sleep", "600"]}]}}
        self.options = {**self.options, "pod_template": sleeping}
        return self.job(uri, attempt)

    async def ended(self, client: Client, engine: KubeEngine, jobs: list[Job], delete: Any) -> set[str]:
        """Begin some attempts, end them by `delete`; the names of the pods that came meanwhile."""
        await asyncio.gather(*(engine.submit(job) for job in jobs))
        await asyncio.gather(*(until(engine, job, running(2)) for job in jobs))
        before = {name for job in jobs for name in await self.uids(client, job)}
        async with Watching(client, self.namespace) as names:
            await asyncio.gather(*map(delete, jobs))
            await asyncio.sleep(5)
        return names - before

    async def test_a_plain_deletion_makes_pods_anew_and_ours_never(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Seen: a new set of pods in 4 of 10 plain deletions, with or without force; in 0 of 25 after a suspension."""

        async def plainly(job: Job) -> None:
            await client.delete(TRAINJOBS, self.namespace, job.name)

        async def ours(job: Job) -> None:
            await engine.delete(job, 0.0)

        numbers = iter(range(1, 1000))
        for _ in range(6):
            jobs = [self.light(uri, next(numbers)) for _ in range(5)]
            anew = await self.ended(client, engine, jobs, plainly)
            await asyncio.gather(*map(ours, jobs))
            if anew:
                break
        else:
            pytest.fail("this Trainer makes no pods anew: nothing needs to be suspended any more")
        for _ in range(2):
            jobs = [self.light(uri, next(numbers)) for _ in range(5)]
            assert not await self.ended(client, engine, jobs, ours)
            for job in jobs:
                for resource in (TRAINJOBS, JOBSETS, RUNTIMES):
                    assert not await self.exists(client, resource, job.name)

    async def test_it_ends_at_once_without_grace(self, engine: KubeEngine, uri: str) -> None:
        job, loop = self.job(uri), asyncio.get_running_loop()
        await engine.submit(job)
        await until(engine, job, running(2))
        began = loop.time()
        await engine.delete(job, 0.0)
        assert loop.time() - began < 5  # 0.4 s on an idle machine

    async def test_a_runtime_without_its_trainjob_is_adopted_or_removed(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """A controller may die between the two."""
        for attempt in (1, 2):
            job = self.job(uri, attempt)
            (resource, body), _ = engine.kind.render(job, options_of(job.spec, engine.kind.options))
            assert resource == RUNTIMES
            await client.create(resource, self.namespace, body)
            if attempt == 1:
                await engine.delete(job, 0.0)
                assert not await self.exists(client, RUNTIMES, job.name)
            else:
                async with self.live(engine, job):
                    await until(engine, job, running(2))
                    made = await client.get(RUNTIMES, self.namespace, job.name)
                    assert [one["kind"] for one in made["metadata"]["ownerReferences"]] == ["TrainJob"]

    # -- other hands ---------------------------------------------------------------------------------------------

    async def test_somebody_elses_object_is_neither_adopted_nor_deleted(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Neither a TrainJob nor a runtime."""
        first, second = self.job(uri, 1), self.job(uri, 2)
        for job in (first, second):
            (_, runtime), (_, body) = engine.kind.render(job, options_of(job.spec, engine.kind.options))
            name = f"{job.name}-theirs" if job is first else job.name
            metadata = {"name": name, "namespace": self.namespace}
            await client.create(RUNTIMES, self.namespace, {**runtime, "metadata": metadata})
            metadata = {**metadata, "name": job.name}
            body["spec"]["runtimeRef"]["name"] = name
            if job is first:
                await client.create(TRAINJOBS, self.namespace, {**body, "metadata": metadata})
            with pytest.raises(SubmitRefused, match="not this run's"):
                await engine.submit(job)
            await engine.delete(job, 0.0)
            assert await self.exists(client, RUNTIMES, name)
        assert await self.exists(client, TRAINJOBS, first.name)
        assert not await self.exists(client, RUNTIMES, first.name)

    async def test_suspended_by_hand_it_is_a_preemption(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await client.patch(TRAINJOBS, self.namespace, job.name, {"spec": {"suspend": True}})
            failure = await self.failure(engine, job)
        assert failure.kind is FailureKind.PREEMPTED
        assert "suspended" in failure.reason

    async def test_scaled_and_suspended_it_keeps_its_number(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """The number is the child Job's, whatever the TrainJob says."""
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            before = await self.uids(client, job)
            await engine.scale(job, 4)
            await until(engine, job, running(4))
            await asyncio.sleep(5)  # nobody puts it back
            await until(engine, job, running(4))
            assert before.items() < (await self.uids(client, job)).items()

    # -- what is in the way --------------------------------------------------------------------------------------

    async def test_a_jobset_that_is_refused_is_told(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Trainer says so in an event alone, for ever."""
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": {"count/jobsets.jobset.x-k8s.io": "0"}},
        }
        await client.create(QUOTAS, self.namespace, quota)

        async def counted() -> Any:
            return (await client.get(QUOTAS, self.namespace, "none")).get("status", {}).get("hard")

        await kube.until(counted, "the quota to hold")
        job = self.job(uri)
        async with self.live(engine, job):
            status = await until(
                engine, job, lambda status: "exceeded quota" in str(status.wait and status.wait.reason)
            )
        assert status.waiting is Waiting.STARTING
        assert status.wait is not None
        assert str(status.wait.reason).startswith("TrainJobResourcesCreationFailed: ")

    async def test_pods_that_are_refused_are_told(self, engine: KubeEngine, uri: str, client: Client) -> None:
        self.options = {**self.options, "service_account": "no-such-account"}
        job = Job(uri, self.make_spec(workers=Workers(1)), 1, 1)
        async with self.live(engine, job):
            await until(
                engine, job, lambda status: "no-such-account" in str(status.wait and status.wait.reason)
            )


class Watching:
    """The names of all pods that come or change meanwhile."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._names: set[str] = set()

    async def __aenter__(self) -> set[str]:
        _, version = await self._client.list(PODS, self._namespace)
        self._task = asyncio.create_task(self._look(version))
        return self._names

    async def _look(self, version: str) -> None:
        watch = self._client.watch(PODS, self._namespace, labels="", version=version, seconds=300)
        async with watch as events:
            async for event in events:
                self._names.add(event["object"]["metadata"].get("name", ""))
                self._names.discard("")

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
