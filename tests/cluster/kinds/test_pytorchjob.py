"""PyTorchJobs on a real cluster with the training-operator."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Missing, Resource
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.pytorchjob import PYTORCHJOBS, PyTorchJobEngine, PyTorchJobKind
from airflow_elastic.spec.errors import EngineError, SubmitRefused
from airflow_elastic.spec.run import Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.faults.test_node_faults import apart
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import ClusterEngine, documented_rights
from tests.support.machine.patience import until_async
from tests.support.runs.faults import Faults

#: 1.9.3 needs less than 0.3 s to act; what it has not done after so long it does not do.
QUIET_SECONDS = 5.0


@pytest.fixture(autouse=True)
async def operator(client: Client) -> None:
    if not await client.knows(PYTORCHJOBS):
        pytest.skip("install the training-operator in the cluster to run this")


class _OtherPolicy(PyTorchJobEngine):
    """As it would be with another restartPolicy."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self.kind = _PolicyKind(policy)  # type: ignore[misc]


class _PolicyKind(PyTorchJobKind):
    def __init__(self, policy: str) -> None:
        self._policy = policy

    def _replicas(self, *args: Any) -> dict[str, Any]:
        return {**super()._replicas(*args), "restartPolicy": self._policy}


@pytest.mark.siblings("PyTorchJobs")
class TestPyTorchJob(ClusterEngine):
    engine_name = "pytorchjob"

    @property
    def namespace(self) -> str:
        return str(self.options["namespace"])

    async def uids(self, client: Client, job: Job) -> dict[str, str]:
        """Of all pods of the job, by the last letter of their names: their index."""
        return {pod["metadata"]["name"][-1]: pod["metadata"]["uid"] for pod in await self.pods(client, job)}

    async def conditions(self, client: Client, job: Job) -> set[str]:
        """Those that are true."""
        found = await client.get(PYTORCHJOBS, self.namespace, job.name)
        return {c["type"] for c in found.get("status", {}).get("conditions", ()) if c["status"] == "True"}

    async def until_it_is(self, client: Client, job: Job, condition: str) -> None:
        async def is_so() -> bool:
            return condition in await self.conditions(client, job)

        await until_async(is_so, f"the job to be {condition}")

    async def change(self, client: Client, job: Job, spec: dict[str, Any]) -> None:
        await client.patch(PYTORCHJOBS, self.namespace, job.name, {"spec": spec})

    # -- one life --------------------------------------------------------------------------------------------------

    async def begun(self, engine: KubeEngine, job: Job, workers: int) -> None:
        """Wait until so many workers run, and their agents have begun the only life that they have."""
        await until(engine, job, running(workers))
        folder = Path(job.run_uri) / "jobs" / job.name

        async def alive() -> bool:
            return len(list(folder.glob("node-*/agent-*.json"))) == workers

        await until_async(alive, "the agents to begin")

    async def test_the_operator_replaces_no_pod(self, engine: KubeEngine, uri: str, client: Client) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await self.begun(engine, job, 2)
            before = await self.uids(client, job)
            await client.delete(PODS, self.namespace, f"{job.name}-worker-1", grace_seconds=1)
            await self.until_it_is(client, job, "Failed")
            await asyncio.sleep(QUIET_SECONDS)
            assert await self.uids(client, job) == {"0": before["0"]}
            status = await until(engine, job, lambda status: True)
        assert status.workers[0].phase is WorkerPhase.RUNNING

    async def test_a_pod_that_vanished_is_lost_whether_the_operator_replaces_it_or_not(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Deleted without grace the operator may or may not see it fail: it makes another, or ends the job, or both.

        Whatever it makes ends at once: the worker has had its life.
        """
        job = self.job(uri)
        async with self.live(engine, job):
            await self.begun(engine, job, 2)
            await client.delete(PODS, self.namespace, f"{job.name}-worker-1", grace_seconds=0)
            status = await until(engine, job, lambda status: status.workers[1].phase is WorkerPhase.LOST)
            told = "one life|makes no more pods|was made again|was deleted"
            assert re.search(told, str(status.workers[1].reason)), status
            await self.until_it_is(client, job, "Failed")
            await asyncio.sleep(QUIET_SECONDS)
            await until(engine, job, lambda status: status.workers[1].phase is WorkerPhase.LOST)

    @pytest.mark.parametrize("policy", ["ExitCode", "OnFailure"])
    async def test_with_another_policy_a_second_life_covers_the_first(
        self, uri: str, client: Client, faults: Faults, policy: str
    ) -> None:
        """Why it is Never: what became of a worker is lost, though our agent refuses to be one twice."""
        engine, job = _OtherPolicy(policy), self.job(uri)
        async with self.live(engine, job):
            await self.begun(engine, job, 2)
            before = await self.uids(client, job)
            faults.pod(self.namespace, f"{job.name}-worker-1", "signal", "KILL")

            async def second_life() -> bool:
                status = await until(engine, job, lambda status: True)
                return "one life" in str(status.workers[1].reason)

            await until_async(second_life, "the worker's second life to end")
            after = await self.uids(client, job)
        assert (after["1"] != before["1"]) == (policy == "ExitCode")

    @pytest.mark.parametrize(
        "code", ["137", *(pytest.param(code, marks=pytest.mark.slow) for code in ("130", "143"))]
    )
    async def test_codes_that_operators_restart_are_failures_like_others(
        self, engine: KubeEngine, uri: str, client: Client, code: str
    ) -> None:
        job = self.ending(uri, "code", code)
        async with self.live(engine, job):
            failure = await self.failure(engine, job)
            before = await self.uids(client, job)
            await self.until_it_is(client, job, "Failed")
            await asyncio.sleep(QUIET_SECONDS)
            assert await self.uids(client, job) == before
        assert failure.exit_code == int(code)

    async def test_one_failure_leaves_the_others_to_the_run(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.ending(uri, "code", "3", workers=2)
        async with self.live(engine, job):
            failure = await self.failure(engine, job)
            await self.until_it_is(client, job, "Failed")
            await asyncio.sleep(QUIET_SECONDS)
            status = await until(engine, job, lambda status: True)
            found = await client.get(PYTORCHJOBS, self.namespace, job.name)
            assert found["status"]["completionTime"], "nobody would remove it after its time to live"
            assert (failure.kind, failure.exit_code) == (FailureKind.CODE_ERROR, 3)
            assert [w.phase for w in status.workers] == [WorkerPhase.FAILED, WorkerPhase.RUNNING]

        async def nothing_left() -> bool:
            return not await self.pods(client, job)

        await until_async(nothing_left, "the pods to go with the job")

    @pytest.mark.parametrize(
        "further", [{}, pytest.param({"elastic_policy": {}}, marks=pytest.mark.slow), {"master": True}]
    )
    async def test_a_worker_that_succeeds_ends_no_other(
        self, engine: KubeEngine, uri: str, client: Client, further: dict[str, Any]
    ) -> None:
        """With an elasticPolicy the job has succeeded as soon as one worker has, with a Master when that has."""
        self.options = {**self.options, **further}
        job = self.ending(uri, "code", "0", workers=2)
        async with self.live(engine, job):
            status = await until(engine, job, lambda s: WorkerPhase.SUCCEEDED in s.phases())
            if further:
                await self.until_it_is(client, job, "Succeeded")
            await asyncio.sleep(QUIET_SECONDS)
            status = await until(engine, job, lambda status: True)
            assert ("Succeeded" in await self.conditions(client, job)) == bool(further)
        assert [w.phase for w in status.workers] == [WorkerPhase.SUCCEEDED, WorkerPhase.RUNNING]
        assert not status.succeeded

    async def test_a_lost_node_holds_up_nobody(
        self, engine: KubeEngine, uri: str, client: Client, faults: Faults
    ) -> None:
        """To the operator its pod runs, and the pod's name is taken, until the node is back."""
        self.options = apart(self.options)
        first, second = self.job(uri, 1), self.job(uri, 2)
        await engine.submit(first)
        await self.begun(engine, first, 2)
        node = str((await self.last_pod(client, first))["spec"]["nodeName"])
        faults.node(node, "partition")
        assert (await self.failure(engine, first)).kind is FailureKind.WORKER_LOST

        async def wedged() -> bool:
            pod = await self.last_pod(client, first)
            assert pod["status"]["phase"] == "Running"
            return "deletionTimestamp" in pod["metadata"]

        await until_async(wedged, "that the pod is to go, and cannot")  # the node is known to be lost before
        await engine.delete(first, 0.0)
        assert not await self.pods(client, first)
        async with self.live(engine, second):
            await self.begun(engine, second, 2)

    async def last_pod(self, client: Client, job: Job) -> dict[str, Any]:
        return max(await self.pods(client, job), key=lambda pod: pod["metadata"]["name"])

    # -- scale steps -----------------------------------------------------------------------------------------------

    async def test_scaled_in_place_it_has_not_failed(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """Nor where it grows again at once, and when two leave together: the operator makes one of them anew."""
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            first = await self.uids(client, job)
            for workers in (3, 2, 3, 1, 2):
                await engine.scale(job, workers)
                await until(engine, job, running(workers))
                await asyncio.sleep(0.5)
            assert await self.conditions(client, job) == {"Created", "Running"}
            assert (await self.uids(client, job))["0"] == first["0"]

    async def test_a_master_is_worker_0_and_stays(self, engine: KubeEngine, uri: str, client: Client) -> None:
        self.options = {**self.options, "master": True}
        job = Job(uri, self.make_spec(workers=Workers(2, max=4)), 1, 2)
        async with self.live(engine, job):
            await self.begun(engine, job, 2)
            await engine.scale(job, 3)
            await self.begun(engine, job, 3)
            await engine.scale(job, 2)
            await until(engine, job, running(2))
            names = {pod["metadata"]["name"] for pod in await self.pods(client, job)}
            with pytest.raises(EngineError, match="beside its Master"):
                await engine.scale(job, 1)
        assert {f"{job.name}-master-0", f"{job.name}-worker-0"} <= names

    async def test_without_waiting_it_has_failed_and_makes_no_more_pods(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """What `scale` waits for; and should it happen yet, it is told, and nobody waits for the pod."""
        job = self.job(uri, workers=3)
        async with self.live(engine, job):
            await until(engine, job, running(3))
            await engine.scale(job, 2)

            async def leaving() -> bool:
                return any("deletionTimestamp" in pod["metadata"] for pod in await self.pods(client, job))

            await until_async(leaving, "the worker to leave")
            await self.change(client, job, {"pytorchReplicaSpecs": {"Worker": {"replicas": 3}}})
            await self.until_it_is(client, job, "Failed")
            status = await until(engine, job, lambda status: status.failed)
        assert [w.phase for w in status.workers] == [*[WorkerPhase.RUNNING] * 2, WorkerPhase.LOST]

    async def test_never_scaled_to_nothing(self, engine: KubeEngine, uri: str, client: Client) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            with pytest.raises(EngineError, match="must have a worker"):
                await engine.scale(job, 0)
            await asyncio.sleep(1)
            await until(engine, job, running(2))

    async def test_scaled_to_nothing_by_somebody_else_it_is_lost(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """And has succeeded, if one asked the operator."""
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await client.patch(PYTORCHJOBS, self.namespace, job.name, {"spec": {"replicas": 0}}, "scale")
            await self.until_it_is(client, job, "Succeeded")
            status = await until(engine, job, lambda status: not status.phases() & {WorkerPhase.RUNNING})
        assert not status.succeeded
        assert status.failed

    # -- queues ----------------------------------------------------------------------------------------------------

    async def test_suspended_by_hand_it_is_taken_away(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await self.change(client, job, {"runPolicy": {"suspend": True}})
            status = await until(engine, job, lambda status: status.failed)
        assert {(w.phase, w.preempted) for w in status.workers} == {(WorkerPhase.LOST, True)}

    async def test_created_suspended_it_waits_until_it_is_let_go(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        self.options = {**self.options, "run_policy": {"suspend": True}}
        job = self.job(uri)
        async with self.live(engine, job):
            await self.until_it_is(client, job, "Suspended")
            await until(engine, job, lambda status: status.waiting is Waiting.QUEUED)
            await self.change(client, job, {"runPolicy": {"suspend": False}})
            await until(engine, job, running(2))

    # -- the end ---------------------------------------------------------------------------------------------------

    async def test_what_has_succeeded_stays_for_a_while(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        self.options = {**self.options, "ttl_seconds": 3}
        job = self.ending(uri, "code", "0")
        await engine.submit(job)
        await until(engine, job, lambda status: status.succeeded)
        await self.until_it_is(client, job, "Succeeded")
        await asyncio.sleep(QUIET_SECONDS)
        await engine.delete(job, 0.0)
        assert (await until(engine, job, lambda status: True)).succeeded
        await engine.close(job)

        async def gone() -> bool:
            try:
                await client.get(PYTORCHJOBS, self.namespace, job.name)
            except Missing:
                return True
            return False

        await until_async(gone, "the operator to remove it")

    # -- what is refused -------------------------------------------------------------------------------------------

    async def test_without_the_operator_it_is_said(self, uri: str) -> None:
        class Kind(PyTorchJobKind):
            resource = dataclasses.replace(PYTORCHJOBS, plural="pytorchworks")

            def render(self, *args: Any) -> list[tuple[Resource, dict[str, Any]]]:
                return [(self.resource, body) for _, body in super().render(*args)]

        class Engine(PyTorchJobEngine):
            kind = Kind()

        with pytest.raises(SubmitRefused, match="comes with the training-operator"):
            await Engine().submit(self.job(uri))

    async def test_what_the_operator_does_not_take_is_refused(self, engine: KubeEngine, uri: str) -> None:
        self.options = {**self.options, "elastic_policy": {"minReplicas": "two"}}
        with pytest.raises(SubmitRefused, match="minReplicas"):
            await engine.submit(self.job(uri))

    async def test_without_rights_it_is_said(
        self, uri: str, account: Callable[..., Awaitable[kube.Account]]
    ) -> None:
        engine = PyTorchJobEngine(access=(await account()).access)
        self._reach_by_the_account()
        with pytest.raises(SubmitRefused, match=r"create pytorchjobs\.kubeflow\.org .*forbidden.*grant it"):
            await engine.submit(self.job(uri))

    async def test_the_documented_rights_are_enough(
        self, uri: str, shared_folder: Path, account: Callable[..., Awaitable[kube.Account]]
    ) -> None:
        engine = PyTorchJobEngine(access=(await account(*documented_rights("pytorchjob"))).access)
        self._reach_by_the_account()
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            for workers in (3, 2, 3):
                await engine.scale(job, workers)
                await until(engine, job, running(workers))
            await engine.close(job)
        failing = self.ending(str(shared_folder / "failing"), "code", "3")
        async with self.live(engine, failing):
            assert (await self.failure(engine, failing)).exit_code == 3

    def _reach_by_the_account(self) -> None:
        self.options = {name: value for name, value in self.options.items() if name != "kubeconfig"}
