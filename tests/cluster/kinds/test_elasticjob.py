"""ElasticJobs: a real API server takes all that we render; and DLRover's real master makes the pods."""

from __future__ import annotations

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client, Invalid, Resource
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.elasticjob import (
    ELASTICJOBS,
    NAME_LABEL,
    ElasticJobEngine,
)
from airflow_elastic.engines.kube.kinds.elasticjob_crd import findings
from airflow_elastic.spec.run import RunSpec, SecretRef, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes import dlrover, kube
from tests.support.kubernetes.cluster import QUOTAS, ClusterEngine, documented_rights, pod_spec, suspend
from tests.support.machine.patience import until_async


@pytest.fixture(autouse=True)
async def crd(client: Client) -> None:
    if not await client.knows(ELASTICJOBS):
        pytest.skip(f"install {ELASTICJOBS.needs}, or its CRD elasticjobs.{ELASTICJOBS.group}, to run this")


SCALEPLANS = Resource(ELASTICJOBS.group, ELASTICJOBS.version, "scaleplans", "ScalePlan")
OTHERS = ("chief", "evaluator", "ps")
PS = {
    "ps": {"replicas": 2, "command": ["ps"], "resources": {"cpu": "1"}, "restart_timeout": 60},
    "chief": {"replicas": 1, "command": ["chief"], "env": {"A": "b"}, "auto_scale": True},
    "evaluator": {"replicas": 1, "command": ["evaluate"], "image": "other:1", "priority": "low"},
}
RENDERED: dict[str, dict[str, Any]] = {
    "the least": {},
    "the whole spec": {
        "distribution_strategy": "AllreduceStrategy",
        "optimize_mode": "cluster",
        "brain_service": "brain.dlrover:50001",
        "resource_limits": {"cpu": "100", "memory": "1Ti", "gpu": "8"},
        "envs": {"A": {"name": "A", "value": "1"}},
        "suspend": True,
        "auto_scale": True,
        "restart_timeout": 600,
        "priority": "0.5",
    },
    "parameter servers": {"distribution_strategy": "ParameterServerStrategy", "replicas": PS},
    "single-job": {"distribution_strategy": "CustomStrategy", "optimize_mode": "single-job"},
    "the master": {
        "master": {
            "image": "dlrover:1",
            "python": "/bin/python",
            "service_account": "master",
            "resources": {"cpu": "2"},
            "options": {"pending_timeout": "60", "pre_check_ops": "[]", "enable_dashboard": "true"},
            "pod_template": {"spec": {"priorityClassName": "high"}},
        }
    },
    "pods": {
        "volumes": [{"mount_path": "/data", "claim": "data"}, {"mount_path": "/tmp2", "empty_dir": True}],
        "shared_memory": "1Gi",
        "node_selector": {"gpu": "a100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "topology": "topology.kubernetes.io/zone",
        "image_pull_secrets": ["registry"],
        "service_account": "trainer",
        "init_containers": [{"name": "fetch", "image": "fetch:1"}],
        "host_network": True,
        "ipc_lock": True,
        "labels": {"team": "a"},
        "annotations": {"cost": "b"},
        "pod_template": {"spec": {"hostIPC": True}},
    },
}


@pytest.mark.parametrize("options", RENDERED.values(), ids=RENDERED)
async def test_the_api_server_takes_it_strictly(
    options: dict[str, Any], client: Client, namespace: str
) -> None:
    spec = RunSpec(
        ("train.py",),
        engine="elasticjob",
        workers=Workers(2, min=1, max=4, resources={"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}),
        engine_options={"image": "trainer:1", "namespace": namespace, **options},
        env={"A": "b"},
        secrets=(SecretRef("TOKEN", "kubernetes", "secret/key"),),
    )
    engine, job = ElasticJobEngine(), Job("s3://bucket/run", spec, 1, 2)
    engine.check(spec)
    (body,) = engine.render(job)["items"]
    made = await client.create(ELASTICJOBS, namespace, body)
    assert made["spec"] == body["spec"], "something was dropped"


async def test_a_field_that_the_installed_kind_does_not_have_is_refused(
    client: Client, namespace: str
) -> None:
    """And not ignored: a job without sharding is not what was asked for."""
    options = {"image": "t:1", "namespace": namespace, "enable_dynamic_sharding": True}
    job = Job("s3://b/r", RunSpec(("t.py",), engine="elasticjob", engine_options=options), 1, 1)
    (body,) = ElasticJobEngine().render(job)["items"]
    with pytest.raises(Invalid, match="enableDynamicSharding"):
        await client.create(ELASTICJOBS, namespace, body)


@pytest.fixture
async def bases(client: Client, kubectl: kube.Kubectl) -> AsyncIterator[None]:
    """A cluster whose kind is like the one of DLRover's manifests/bases: templates have no metadata."""
    name = f"crd/{ELASTICJOBS.full_name}"
    before = json.loads(kubectl("get", name, "-o", "json"))
    after = copy.deepcopy(before)
    (version,) = after["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    template = spec["replicaSpecs"]["additionalProperties"]["properties"]["template"]["properties"]
    template["metadata"] = {"type": "object"}
    spec.pop("suspend", None)

    async def apply(crd: dict[str, Any], lacking: int) -> None:
        crd = {**crd, "metadata": {**crd["metadata"], "resourceVersion": None}}
        kubectl("replace", "-f", "-", stdin=json.dumps(crd))

        async def told() -> bool:
            found = await findings(client, "any")
            return sum("templates" in finding.subject for finding in found) == lacking

        await until_async(told, "the API server to tell of the kind as it is now")

    await apply(after, 1)
    yield
    await apply(before, 0)


async def test_a_job_is_made_where_templates_have_no_metadata(
    bases: None, client: Client, access: Access, namespace: str, tmp_path: Path
) -> None:
    """And is adopted, by what it says of itself."""
    options = {"image": "t:1", "namespace": namespace, "volumes": [{"mount_path": "/", "claim": "data"}]}
    job = Job(str(tmp_path), RunSpec(("t.py",), engine="elasticjob", engine_options=options), 1, 1)
    engine = ElasticJobEngine(access=access)
    for _ in range(2):
        await engine.submit(job)
    made = await client.get(ELASTICJOBS, namespace, job.name)
    template = made["spec"]["replicaSpecs"]["worker"]["template"]
    assert template["spec"]["containers"]
    assert not template.get("metadata")
    await engine.delete(job, 0.0)


def lines_of_logs(uri: str) -> set[str]:
    return {line for one in Path(uri, "logs").rglob("*.log") for line in one.read_text().splitlines()}


@pytest.mark.siblings("ElasticJobs")
@pytest.mark.timeout(1200)
class TestElasticJob(ClusterEngine):
    """Whoever drives the jobs, and the master, have the rights that the documentation gives them, and no others."""

    engine_name = "elasticjob"
    quick = frozenset({"test_workers_outlive_their_master", "test_dlrover_run_meets_at_the_master"})

    @pytest.fixture
    async def engine(self, account: Callable[..., Awaitable[kube.Account]]) -> KubeEngine:
        return ElasticJobEngine(access=(await account(*documented_rights("elasticjob"))).access)

    @pytest.fixture(autouse=True)
    async def _operator(
        self,
        client: Client,
        namespace: str,
        account: Callable[..., Awaitable[kube.Account]],
        _options: None,
    ) -> AsyncIterator[None]:
        python = os.environ.get(dlrover.PYTHON)
        if not python:
            pytest.skip(dlrover.NEEDED)
        master = await account(*documented_rights("elasticjob, master"))
        given = {name: value for name, value in self.options.items() if name != "kubeconfig"}
        self.options = {**given, **dlrover.options(python, master)}
        async with dlrover.operating(client, namespace):
            yield

    async def pods(self, client: Client, job: Job) -> list[dict[str, Any]]:
        workers = f"{NAME_LABEL}={job.name},elasticjob.dlrover/replica-type=worker"
        found, _ = await client.list(PODS, self.options["namespace"], labels=workers)
        return found

    async def test_suspended_before_it_starts_it_is_queued_until_it_is_let_go(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """From the first on: of pods that it has made the master takes none back."""
        self.options |= {"suspend": True}
        job = self.job(uri)
        async with self.live(engine, job):
            status = await until(engine, job, lambda status: status.waiting is Waiting.QUEUED)
            assert not status.failed
            await suspend(client, ELASTICJOBS, self.options["namespace"], job.name, so=False)
            await until(engine, job, running(2))

    async def test_a_quota_that_is_used_up_is_told(
        self, engine: KubeEngine, uri: str, client: Client, kubectl: kube.Kubectl
    ) -> None:
        """By the master, to its log alone; it tries again, and so the run waits."""
        namespace = self.options["namespace"]
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "1"}}}
        await client.create(QUOTAS, namespace, quota)
        await until_async(lambda: self._counted(client), "the quota to be counted")
        job = self.job(uri)
        master = f"elasticjob-{job.name}-dlrover-master-0"
        async with self.live(engine, job):

            async def refused() -> bool:
                pods, _ = await client.list(PODS, namespace, labels=f"{NAME_LABEL}={job.name}")
                begun = [pod for pod in pods if pod["status"]["phase"] == "Running"]
                return bool(begun) and "exceeded quota" in kubectl("-n", namespace, "logs", master)

            await until_async(refused, "the master to be refused")
            status = await until(engine, job, lambda status: bool(status.workers))
            assert status.waiting is Waiting.STARTING
            assert not status.failed
            await client.delete(QUOTAS, namespace, "none")
            await until(engine, job, running(2))

    async def test_an_image_that_is_not_there_is_told(self, engine: KubeEngine, uri: str) -> None:
        """The master's, and the workers'."""
        there, missing = self.options["image"], "localhost/no-such-image:1"
        self.options |= {"image": missing, "image_pull_policy": "Never"}
        job = self.job(uri)
        async with self.live(engine, job):
            status = await until(
                engine, job, lambda status: "job master waits" in str(status.wait and status.wait.reason)
            )
        assert status.wait is not None
        assert missing in (status.wait.reason or "")
        self.options["master"] = {**self.options["master"], "image": there}
        await super().test_an_image_that_is_not_there_is_told(engine, uri + "-2")

    async def test_workers_outlive_their_master(self, engine: KubeEngine, uri: str, client: Client) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            master = f"elasticjob-{job.name}-dlrover-master-0"
            await client.delete(PODS, self.options["namespace"], master, grace_seconds=0)
            await kube.phase_of(client, ELASTICJOBS, self.options["namespace"], job.name, "Failed")
            await until(engine, job, running(2))
            name = max(pod["metadata"]["name"] for pod in await self.pods(client, job))
            await client.delete(PODS, self.options["namespace"], name, grace_seconds=0)
            failure = await self.failure(engine, job)
        assert failure.kind is FailureKind.WORKER_LOST
        following = replace(job, attempt=2)
        async with self.live(engine, following):
            await until(engine, following, running(2))

    async def test_a_run_outlives_its_master_and_scales_each_under_a_new_name(
        self, uri: str, client: Client, kubeconfig: str
    ) -> None:
        options = {**self.options, "kubeconfig": kubeconfig}
        spec = training(self.engine_name, options, "--epochs=400", "--step-seconds=0.05")
        async with driving(uri, spec) as driven:
            await driven.at_step(7)
            for kind in ("dlrover-master", "worker"):
                await self.lose(client, str(driven.state.attempt.job), kind)
            await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
            first, second = driven.state.attempts
            assert first.failure is not None
            assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.WORKER_LOST)
            await driven.at_step(second.from_step + 3)
            driven.run.ask_scale(1, by="test")
            await driven.until(lambda: len(driven.state.attempts) == 3, "the third attempt")
            await driven.at_step(driven.state.attempt.from_step + 3)
            driven.run.ask_stop(by="test")
            state = await driven.end()
        assert (state.outcome, state.restarts_used) == ("stopped", 1)
        second, third = state.attempts[1:]
        assert (second.cause, third.workers) == (Cause.SCALE_STEP, 1)
        assert len({first.job, second.job, third.job}) == 3
        assert third.from_step > second.from_step >= 5

    async def lose(self, client: Client, job: str, kind: str) -> None:
        """Delete the last pod of this kind, without grace: as a node does that goes away."""
        labels = f"{NAME_LABEL}={job},elasticjob.dlrover/replica-type={kind}"
        found, _ = await client.list(PODS, self.options["namespace"], labels=labels)
        last = max(pod["metadata"]["name"] for pod in found)
        await client.delete(PODS, self.options["namespace"], last, grace_seconds=0)

    async def test_no_scale_plan_is_heeded(
        self,
        engine: KubeEngine,
        uri: str,
        client: Client,
        account: Callable[..., Awaitable[kube.Account]],
    ) -> None:
        """Not even with parameter servers, which the master was once made to scale so: a scale step is an attempt.

        The day this fails, `scales_in_place` may be thought of anew.
        """
        if not await client.knows(SCALEPLANS):
            pytest.skip(f"install the CRD scaleplans.{SCALEPLANS.group} to run this")
        namespace, little = self.options["namespace"], {"cpu": "100m", "memory": "64Mi"}
        one = {"replicas": 1, "command": ["sleep", "9999"], "resources": little}
        plans = {"apiGroups": [SCALEPLANS.group], "resources": ["scaleplans"], "verbs": ["*"]}
        master = await account(*documented_rights("elasticjob, master"), plans)
        self.options |= {
            "distribution_strategy": "ParameterServerStrategy",
            "replicas": dict.fromkeys(OTHERS, one),
            "master": {**self.options["master"], "service_account": master.name},
        }
        workers = Workers(2, min=1, max=4, resources={"cpu": "500m", "memory": "1Gi"})
        job = Job(uri, self.make_spec(workers=workers), 1, 2)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            assert await self.kinds(client, job) == [*OTHERS, "worker", "worker"]
            wanted = {"worker": {"replicas": 3, "resource": little}}
            labels = {NAME_LABEL: job.name, "scale-type": "manual"}
            plan = {
                "apiVersion": SCALEPLANS.api_version,
                "kind": SCALEPLANS.kind,
                "metadata": {"name": "more", "labels": labels},
                "spec": {"ownerJob": job.name, "replicaResourceSpecs": wanted},
            }
            await client.create(SCALEPLANS, namespace, plan)
            await asyncio.sleep(30)
            made = await client.get(SCALEPLANS, namespace, "more")
            assert "ownerReferences" not in made["metadata"], "the master has read it"
            assert await self.kinds(client, job) == [*OTHERS, "worker", "worker"]

    async def kinds(self, client: Client, job: Job) -> list[str]:
        """Of what the master has made."""
        found, _ = await client.list(PODS, self.options["namespace"], labels=f"{NAME_LABEL}={job.name}")
        kinds = (pod["metadata"]["labels"]["elasticjob.dlrover/replica-type"] for pod in found)
        return sorted(kind for kind in kinds if kind != "dlrover-master")

    async def test_the_master_replaces_no_worker(self, engine: KubeEngine, uri: str, client: Client) -> None:
        """With the default restartCount a deleted one is made anew within seconds. Nobody watches as it goes."""
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))

            async def begun() -> bool:
                return len(await asyncio.to_thread(engine._begun, job)) == 2

            await until_async(begun, "the agents")
            name = max(pod["metadata"]["name"] for pod in await self.pods(client, job))
            await client.delete(PODS, self.options["namespace"], name, grace_seconds=0)
            status = await until(engine, job, lambda status: status.failed)
            assert WorkerPhase.RUNNING in status.phases()
            await asyncio.sleep(20)
            assert len(await self.pods(client, job)) == 1

    async def test_dlrover_run_meets_at_the_master(self, engine: KubeEngine, uri: str) -> None:
        """With dlrover's own interpreter, in which this checkout is installed too."""
        options = {**self.options, "python": os.environ[dlrover.PYTHON]}
        spec = pod_spec(
            self.engine_name,
            options,
            "collectives/sum_ranks.py",
            launcher="dlrover-run",
            launcher_options={"training_port": 61000},
            workers=Workers(2, resources={"cpu": "1", "memory": "3Gi"}),  # limits, too: torch needs as much
        )
        job = Job(uri, spec, 1, 2)
        async with self.live(engine, job):
            await until(engine, job, lambda status: status.succeeded)
        assert {"rank 0 of 2: 2", "rank 1 of 2: 2"} <= lines_of_logs(uri)
