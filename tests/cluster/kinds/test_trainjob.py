"""TrainJobs on a real cluster with the Kubeflow Trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Missing
from airflow_elastic.adapters.kube.errors import Invalid
from airflow_elastic.adapters.kube.resources import JOBS, PODS, Resource
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.trainjob import RUNTIMES, TRAINJOBS, TrainJobEngine, misses_runtime
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.kinds.test_training import training, world
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import QUOTAS, ClusterEngine, documented_rights, last_pod
from tests.support.kubernetes.kube import JOBSETS, Watching
from tests.support.machine.patience import until_async
from tests.support.runs.faults import Faults


@pytest.fixture(autouse=True)
async def trainer(client: Client) -> None:
    if not await client.knows(TRAINJOBS):
        pytest.skip("install the Kubeflow Trainer in the cluster to run this")


@pytest.mark.siblings("TrainJobs")
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

    async def gone(self, client: Client, name: str) -> bool:
        return not any([await self.exists(client, one, name) for one in (TRAINJOBS, JOBSETS, RUNTIMES)])

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

            await until_async(both, "both workers to begin their lives")
            before = await self.uids(client, job)
            await client.delete(JOBS, self.namespace, engine.child.name(job) if engine.child else "")

            async def ended() -> bool:
                pods = [pod for pod in await self.pods(client, job) if pod["metadata"]["name"] not in before]
                return len(pods) == 2 and {pod["status"]["phase"] for pod in pods} == {"Failed"}

            await until_async(ended, "both new pods to end")
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

    @pytest.mark.slow
    async def test_a_plain_deletion_makes_pods_anew_and_ours_never(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Seen: a new set of pods in 4 of 10 plain deletions, with or without force; in 0 of 25 after a suspension."""

        async def plainly(job: Job) -> None:
            await client.delete(TRAINJOBS, self.namespace, job.name)

        async def ours(job: Job) -> None:
            await engine.delete(job, 0.0)

        numbers = iter(range(1, 1000))
        for _ in range(2):
            jobs = [self.light(uri, next(numbers)) for _ in range(5)]
            assert not await self.ended(client, engine, jobs, ours)
            assert all([await self.gone(client, job.name) for job in jobs])
        for _ in range(3):  # what that is good for; it is a race of Trainer's own, and may not be met
            jobs = [self.light(uri, next(numbers)) for _ in range(5)]
            anew = await self.ended(client, engine, jobs, plainly)
            await asyncio.gather(*map(ours, jobs))
            if anew:
                return
        pytest.skip("ours made no pods anew; nor did 15 plain deletions this time, which often do")

    async def test_it_is_at_rest_when_it_is_deleted(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """What keeps pods from being made anew, each time."""
        job = self.light(uri, 1)
        await engine.submit(job)
        await until(engine, job, running(2))
        _, version = await client.list(TRAINJOBS, self.namespace)
        watch = client.watch(TRAINJOBS, self.namespace, labels="", version=version, seconds=300)
        async with watch as events:
            await engine.delete(job, 0.0)
            last = await anext(event["object"] async for event in events if event["type"] == "DELETED")
        conditions = last["status"].get("conditions", [])
        assert ("Suspended", "True") in [(one["type"], one["status"]) for one in conditions]

    async def test_the_end_of_one_that_has_failed_makes_no_pods_anew(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Seen: a new set of pods in 2 of 10 plain deletions."""
        failing = {"spec": {"containers": [{"name": "node", "command": ["false"]}]}}
        self.options = {**self.options, "pod_template": failing}
        jobs = [self.job(uri, attempt) for attempt in range(1, 6)]
        await asyncio.gather(*(engine.submit(job) for job in jobs))

        async def failed() -> bool:
            found, _ = await client.list(TRAINJOBS, self.namespace)
            conditions = [one.get("status", {}).get("conditions", []) for one in found]
            return all("Failed" in {one["type"] for one in those} for those in conditions)

        await until_async(failed, "all TrainJobs to fail")
        before = {name for job in jobs for name in await self.uids(client, job)}
        async with Watching(client, self.namespace) as names:
            await asyncio.gather(*(engine.delete(job, 0.0) for job in jobs))
            await asyncio.sleep(5)
        assert names <= before

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
                theirs = {**body, "metadata": metadata}

                async def created(theirs: dict[str, Any] = theirs, runtime: str = name) -> bool:
                    try:
                        await client.create(TRAINJOBS, self.namespace, theirs)
                    except Invalid as error:  # Trainer or Kueue has not seen the runtime yet
                        if not misses_runtime(str(error), runtime):
                            raise
                        return False
                    return True

                await until_async(created, "somebody else's TrainJob")
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

    async def test_the_documented_rights_are_enough(
        self, uri: str, account: Callable[..., Awaitable[kube.Account]], client: Client
    ) -> None:
        engine = TrainJobEngine(access=(await account(*documented_rights("trainjob"))).access)
        self.options = {name: value for name, value in self.options.items() if name != "kubeconfig"}
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await engine.scale(job, 3)
            await until(engine, job, running(3))
        await until_async(lambda: self.gone(client, job.name), "what the TrainJob has owned to go, too")

    async def test_without_rights_it_says_which_are_missing(
        self, uri: str, account: Callable[..., Awaitable[kube.Account]]
    ) -> None:
        engine = TrainJobEngine(access=(await account()).access)
        self.options = {name: value for name, value in self.options.items() if name != "kubeconfig"}
        with pytest.raises(SubmitRefused, match=r"create trainingruntimes\.trainer.*forbidden.*grant"):
            await engine.submit(self.job(uri))

    async def test_a_runtime_that_is_not_there_is_told(self, engine: KubeEngine, uri: str) -> None:
        self.options = {**self.options, "runtime": {"name": "no-such-runtime"}}
        with pytest.raises(SubmitRefused, match="no-such-runtime"):
            await engine.submit(self.job(uri))

    async def test_a_runtime_of_somebody_else_can_be_used(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """One with all that is in our way: restarts in the pod, a back-off limit, torch's own variables."""
        node = {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "localhost/base:1"}]}}},
        }
        spec = {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": node}]}},
        }
        body = {
            "apiVersion": RUNTIMES.api_version,
            "kind": RUNTIMES.kind,
            "metadata": {"name": "theirs"},
            "spec": spec,
        }
        await client.create(RUNTIMES, self.namespace, body)
        self.options = {**self.options, "runtime": {"name": "theirs", "kind": "TrainingRuntime"}}
        job = self.job(uri)
        engine.check(job.spec)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await engine.scale(job, 3)
            await until(engine, job, running(3))
        assert await self.exists(client, RUNTIMES, "theirs")
        ending = self.ending(uri + "2", "code", "0")
        async with self.live(engine, ending):
            await until(engine, ending, lambda status: status.succeeded)

    # -- what is in the way --------------------------------------------------------------------------------------

    async def test_a_jobset_that_is_refused_is_told(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Trainer says so in an event alone, for ever."""
        hard = {"count/jobsets.jobset.x-k8s.io": "0"}
        quota = {"metadata": {"name": "none"}, "spec": {"hard": hard}}
        await client.create(QUOTAS, self.namespace, quota)

        async def counted() -> Any:
            return (await client.get(QUOTAS, self.namespace, "none")).get("status", {}).get("hard")

        await until_async(counted, "the quota to hold")
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


@pytest.mark.siblings("a worker of a cluster's training is lost")
@pytest.mark.timeout(1200)
async def test_training_survives_a_lost_pod_grows_and_shrinks_in_place(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client, faults: Faults
) -> None:
    """A worker's first process is killed; a new attempt goes on, from 2 workers to 3 and 1."""
    spec = training("trainjob", pod_options, "--epochs=400", "--step-seconds=0.05")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.pod(namespace, await last_pod(driven, client, namespace), "signal", "KILL")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.until(lambda: driven.state.attempt.submitted_at, "its submission")
        first, second = driven.state.attempts
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.WORKER_LOST)
        assert second.from_step >= 5
        left = {one["metadata"]["name"] for one in (await client.list(TRAINJOBS, namespace))[0]}
        assert left == {second.job}
        for workers in (3, 1):
            await driven.at_step(driven.step + 10)
            driven.run.ask_scale(workers, by="test")
            await driven.until(lambda n=workers: world(driven) == n, f"{workers} ranks")  # type: ignore[misc]
        await driven.at_step(driven.step + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 1)
    stretches = state.attempts[1].progress.stretches if state.attempts[1].progress else ()
    assert [stretch.world_size for stretch in stretches] == [2, 3, 1]
    assert not (await client.list(TRAINJOBS, namespace))[0]
