"""What every cluster engine must do, beyond the conformance suite: subclass it, and say which engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.state import Failure, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.render.pod import JOB_LABEL, MANAGED_LABEL, URI_ANNOTATION
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import Health, RunSpec, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import EngineConformance, running, until
from tests.support.driving import Driven
from tests.support.kubernetes import kube
from tests.support.machine.patience import until_async


def _on(*slow: str) -> pytest.MarkDecorator:
    others = [pytest.param(name, marks=pytest.mark.slow) for name in slow]
    return pytest.mark.parametrize("engine_name", ["job", *others], indirect=True)


#: Of a test of what every cluster engine has to bear, with the fixture `engine_name`. On the operators it is one of the
#: slow ones: what differs between engines is in their own tests, and these are in CI.
on_every_engine = _on("pytorchjob", "trainjob", "elasticjob")

#: The same, of a test of scale steps in place: an ElasticJob has none.
on_engines_that_scale = _on("pytorchjob", "trainjob")

GPU = "nvidia.com/gpu"
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SCRIPTS = Path(__file__).parents[1] / "scripts"
CHECKOUT = str(Path(__file__).parents[3])
DOCS = Path(CHECKOUT) / "docs"


def documented_rights(*names: str) -> list[dict[str, Any]]:
    """The rules that the documentation gives for an engine, or for a queue."""
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    rules: list[dict[str, Any]] = []
    for name in names:
        block = text.split(f"<!-- rights: {name} -->")[1].split("```yaml")[1].split("```")[0]
        rules += yaml.safe_load(block)["rules"]
    return rules


def pod_spec(engine: str, options: dict[str, Any], *command: str, **changes: Any) -> RunSpec:
    """A run whose workers are pods that see this checkout."""
    defaults: dict[str, Any] = {
        "command": (str(SCRIPTS / command[0]), *command[1:]),
        "engine": engine,
        "launcher": "python",
        "workers": Workers(2, min=1, max=4),
        "engine_options": options,
        "env": {"PYTHONPATH": CHECKOUT},
    }
    return RunSpec(**{**defaults, **changes})


def somebody(image: str, *, gpus: int, **spec: Any) -> dict[str, Any]:
    """A pod of somebody else's that takes GPUs, and goes without grace."""
    limits = {GPU: str(gpus)}
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", "9999"],
        "resources": {"limits": limits},
    }
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "somebody"}, "spec": body}


#: DLRover leaves no label of ours on its pods, and its master is a pod like any other.
DLROVER_TYPE = "elasticjob.dlrover/replica-type"


async def pods_of(driven: Driven, client: Client, namespace: str) -> list[dict[str, Any]]:
    """The pods of a run's workers, in the order of their names."""
    engine = find_engine(driven.state.spec.engine)
    assert isinstance(engine, KubeEngine)
    workers = f"{engine.kind.pod_label}={driven.state.attempt.job},{DLROVER_TYPE} notin (dlrover-master)"
    pods, _ = await client.list(PODS, namespace, labels=workers)
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


async def last_pod(driven: Driven, client: Client, namespace: str) -> str:
    """The name of the last worker's."""
    return str((await pods_of(driven, client, namespace))[-1]["metadata"]["name"])


async def suspend(client: Client, resource: Resource, namespace: str, name: str, *, so: bool = True) -> None:
    """Suspend a job by its own field, or let it go: as a person does, or a queue."""
    spec: dict[str, Any] = {"suspend": so}
    await client.patch(
        resource, namespace, name, {"spec": {"runPolicy": spec} if resource.kind == "PyTorchJob" else spec}
    )


class ClusterEngine(EngineConformance):
    """The conformance suite, and what can happen to pods. Set `engine_name`."""

    engine_name: str

    #: Names of the tests that are no slow ones, where each takes so long that they cannot all be run for each commit.
    quick: ClassVar[frozenset[str] | None] = None

    @pytest.fixture
    def engine(self) -> KubeEngine:
        found = find_engine(self.engine_name)
        assert isinstance(found, KubeEngine)
        return found

    @pytest.fixture
    def uri(self, shared_folder: Path) -> str:
        return str(shared_folder / "run")

    @pytest.fixture(autouse=True)
    def _options(self, pod_options: dict[str, Any], shared_folder: Path) -> None:
        self.options = pod_options

    def make_spec(self, **changes: Any) -> RunSpec:
        # What never ends by itself takes all the grace that it is given.
        defaults: dict[str, Any] = {"health": Health(grace_seconds=3.0)}
        return pod_spec(self.engine_name, self.options, "faults/forever.py", **{**defaults, **changes})

    def ending(self, uri: str, *how: str, workers: int = 1) -> Job:
        """A job whose rank 0 ends as scripts/faults/leave.py is told."""
        spec = pod_spec(self.engine_name, self.options, "faults/leave.py", *how, workers=Workers(workers))
        return Job(uri, spec, 1, workers)

    @contextlib.asynccontextmanager
    async def live(self, engine: KubeEngine, job: Job) -> AsyncIterator[None]:
        await engine.submit(job)
        try:
            yield
        finally:
            await engine.delete(job, 0.0)

    async def failure(self, engine: KubeEngine, job: Job) -> Failure:
        status = await until(engine, job, lambda status: status.failed)
        found = classify(status)
        assert found is not None
        return found

    async def pods(self, client: Client, job: Job) -> list[dict[str, Any]]:
        found, _ = await client.list(PODS, self.options["namespace"], labels=f"{JOB_LABEL}={job.name}")
        return found

    # -- how workers end -----------------------------------------------------------------------------------------

    async def test_success(self, engine: KubeEngine, uri: str) -> None:
        job = self.ending(uri, "code", "0")
        async with self.live(engine, job):
            await until(engine, job, lambda status: status.succeeded)

    @pytest.mark.parametrize(
        ("how", "kind", "code"),
        [
            (("raise",), FailureKind.CODE_ERROR, 1),
            (("code", "3"), FailureKind.CODE_ERROR, 3),
            (("code", "130"), FailureKind.KILLED, 130),
            (("code", "138"), FailureKind.RESTART_ASKED, 138),
            (("signal", "9"), FailureKind.KILLED, 137),
            (("signal", "15"), FailureKind.KILLED, 143),
            (("signal", "11"), FailureKind.CRASHED, 139),
        ],
    )
    async def test_failures_are_told_apart(
        self, engine: KubeEngine, uri: str, how: tuple[str, ...], kind: FailureKind, code: int
    ) -> None:
        job = self.ending(uri, *how)
        async with self.live(engine, job):
            failure = await self.failure(engine, job)
        assert (failure.kind, failure.exit_code) == (kind, code)
        assert failure.node is not None
        if how == ("raise",):
            assert failure.error == "ValueError: a bad learning rate"
            assert "faults/leave.py" in (failure.traceback or "")

    async def test_memory_that_runs_out_is_told(self, engine: KubeEngine, uri: str) -> None:
        workers = Workers(1, resources={"memory": "256Mi"})
        job = Job(uri, pod_spec(self.engine_name, self.options, "faults/eat.py", workers=workers), 1, 1)
        async with self.live(engine, job):
            failure = await self.failure(engine, job)
        assert (failure.kind, failure.exit_code) == (FailureKind.OUT_OF_MEMORY, 137)
        assert f"(container {engine.kind.container} OOMKilled, limit 256Mi)" in failure.reason

    async def test_an_end_is_seen_before_the_pods_phase_tells_of_it(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """By a second, which the next attempt begins earlier. Not each time, where this machine is busy."""
        spec = pod_spec(self.engine_name, self.options, "faults/leave.py", "code", "3", workers=Workers(1))
        phases = []
        while "Running" not in phases and len(phases) < 5:
            job = Job(uri, spec, len(phases) + 1, 1)
            async with self.live(engine, job):
                await self.failure(engine, job)
                (pod,) = await self.pods(client, job)
                phases.append(pod["status"]["phase"])
        assert "Running" in phases

    async def test_a_pod_that_is_deleted_is_a_lost_worker(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            name = max(pod["metadata"]["name"] for pod in await self.pods(client, job))
            await client.delete(PODS, self.options["namespace"], name)
            failure = await self.failure(engine, job)
        assert failure.kind is FailureKind.WORKER_LOST

    async def test_a_worker_whose_first_process_is_killed_is_lost(
        self, engine: KubeEngine, uri: str, client: Client, faults: Any
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            name = max(pod["metadata"]["name"] for pod in await self.pods(client, job))
            faults.pod(self.options["namespace"], name, "signal", "KILL")
            failure = await self.failure(engine, job)
        assert (failure.kind, failure.exit_code) == (FailureKind.WORKER_LOST, 137)

    async def test_a_sidecar_that_runs_on_keeps_no_pod(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        command = ["sh", "-c", "trap 'exit 0' TERM; while true; do sleep 1; done"]
        sidecar = {"name": "proxy", "image": self.options["image"], "command": command}
        self.options = {**self.options, "pod_template": {"spec": {"containers": [sidecar]}}}
        job = self.ending(uri, "code", "0")
        await engine.submit(job)
        await until(engine, job, lambda status: status.succeeded)
        labels = f"{engine.kind.pod_label}={job.name}"
        pods, _ = await client.list(PODS, self.options["namespace"], labels=labels)
        assert any("running" in c["state"] for pod in pods for c in pod["status"]["containerStatuses"])
        await engine.delete(job, 3.0)
        await engine.close(job)
        pods, _ = await client.list(PODS, self.options["namespace"], labels=labels)
        assert not pods

    # -- what is in the way --------------------------------------------------------------------------------------

    async def test_without_room_it_waits_for_capacity(self, engine: KubeEngine, uri: str) -> None:
        spec = self.make_spec(workers=Workers(2, resources={"nvidia.com/gpu": "64"}))
        job = Job(uri, spec, 1, 2)
        async with self.live(engine, job):
            status = await until(engine, job, lambda status: status.waiting is Waiting.CAPACITY)
        assert status.wait is not None
        assert "nvidia.com/gpu" in (status.wait.reason or "")

    async def for_gpus_of_somebody(self, client: Client, uri: str) -> Job:
        """A job for all GPUs of a machine, which somebody else's pod has."""
        namespace = self.options["namespace"]
        await client.create(PODS, namespace, somebody(self.options["image"], gpus=4))
        found = await kube.phase_of(client, PODS, namespace, "somebody", "Running")
        machine = {"kubernetes.io/hostname": found["spec"]["nodeName"]}
        self.options = {**self.options, "node_selector": machine}
        return Job(uri, self.make_spec(workers=Workers(2, resources={GPU: "2"})), 1, 2)

    async def test_it_begins_as_soon_as_there_is_room(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = await self.for_gpus_of_somebody(client, uri)
        async with self.live(engine, job):
            await until(engine, job, lambda status: status.waiting is Waiting.CAPACITY)
            await client.delete(PODS, self.options["namespace"], "somebody", grace_seconds=0)
            await until(engine, job, running(2))

    async def test_suspended_before_it_starts_it_is_queued_until_it_is_let_go(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        """As a queue holds it: nothing fails."""
        job = await self.for_gpus_of_somebody(client, uri)
        namespace = self.options["namespace"]
        async with self.live(engine, job):
            await until(engine, job, lambda status: status.waiting is Waiting.CAPACITY)
            await suspend(client, engine.kind.resource, namespace, job.name)
            status = await until(engine, job, lambda status: status.waiting is Waiting.QUEUED)
            assert not status.failed

            async def none_left() -> bool:
                return not await self.pods(client, job)

            await until_async(none_left, "the pods to be taken back")
            await client.delete(PODS, namespace, "somebody", grace_seconds=0)
            await suspend(client, engine.kind.resource, namespace, job.name, so=False)
            await until(engine, job, running(2))

    async def test_a_quota_that_is_used_up_is_told(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        namespace = self.options["namespace"]
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        await client.create(QUOTAS, namespace, quota)
        await until_async(lambda: self._counted(client), "the quota to be counted")
        job = self.job(uri)
        async with self.live(engine, job):
            status = await until(
                engine, job, lambda status: "exceeded quota" in str(status.wait and status.wait.reason)
            )
        assert status.waiting is Waiting.STARTING
        assert not status.failed

    async def _counted(self, client: Client) -> bool:
        found = await client.get(QUOTAS, self.options["namespace"], "none")
        return "pods" in found.get("status", {}).get("used", {})

    async def test_an_image_that_is_not_there_is_told(self, engine: KubeEngine, uri: str) -> None:
        self.options = {**self.options, "image": "localhost/no-such-image:1", "image_pull_policy": "Never"}
        job = self.job(uri)
        async with self.live(engine, job):
            status = await until(engine, job, lambda status: status.waiting is Waiting.PULLING)
        assert status.wait is not None
        assert "no-such-image" in (status.wait.reason or "")

    async def test_somebody_elses_object_is_neither_adopted_nor_deleted(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job, namespace = self.job(uri), self.options["namespace"]
        resource = engine.kind.resource
        body = dict(engine.kind.render(job, options_of(job.spec, engine.kind.options)))[resource]
        body = {**body, "metadata": {"name": job.name, "namespace": namespace}}
        made = await client.create(resource, namespace, body)
        with pytest.raises(SubmitRefused, match="not this run's"):
            await engine.submit(job)
        await engine.delete(job, 0.0)
        assert (await client.get(resource, namespace, job.name))["metadata"]["uid"] == made["metadata"]["uid"]

    async def test_deleted_behind_our_back_it_is_lost(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await client.delete(engine.kind.resource, self.options["namespace"], job.name)
            failure = await self.failure(engine, job)
        assert failure.kind is FailureKind.WORKER_LOST

    async def test_nothing_is_left(self, engine: KubeEngine, uri: str, client: Client) -> None:
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
        statuses = [status async for status in engine.watch(job)]
        assert {worker.phase for worker in statuses[-1].workers} == {WorkerPhase.LOST}

        async def none_left() -> bool:
            return not await self.pods(client, job)

        await until_async(none_left, "the pods to go, which their nodes have been told to end")

    @pytest.mark.parametrize("name", ["Ein.Name_mit-ALLEM", "x" * 200, "0", "a--b", "UPPER"])
    async def test_names_of_runs_may_be_any(self, engine: KubeEngine, uri: str, name: str) -> None:
        job = Job(uri, self.make_spec(name=name, workers=Workers(1)), 1, 1)
        async with self.live(engine, job):
            await until(engine, job, running(1))

    async def test_run_uris_may_be_any(self, engine: KubeEngine, uri: str) -> None:
        job = self.ending(f"{uri}/Ein Lauf, 名前 ☃ 100%25 $(X) 'so'/{'x' * 200}", "code", "0")
        async with self.live(engine, job):
            await until(engine, job, lambda status: status.succeeded)

    async def test_labels_of_the_user_take_the_place_of_none_that_it_is_found_by(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        longest = {f"{'a' * 240}.example.com/{'x' * 63}": f"Y.{'z' * 59}_0"}
        ours = {JOB_LABEL: "theirs", MANAGED_LABEL: "helm", "airflow-elastic/attempt": "99"}
        theirs = {URI_ANNOTATION: "theirs", "example.com/any": "Ärzte ☃\n"}
        self.options = {**self.options, "labels": {**longest, **ours}, "annotations": theirs}
        job = self.job(uri)
        async with self.live(engine, job):
            await until(engine, job, running(2))
            await engine.submit(job)
            pods = await self.pods(client, job)
            assert len(pods) == 2
            assert all(longest.items() <= pod["metadata"]["labels"].items() for pod in pods)
        assert not [pod for pod in await self.pods(client, job) if "deletionTimestamp" not in pod["metadata"]]

    async def test_labels_that_no_object_may_have_are_refused(self, engine: KubeEngine, uri: str) -> None:
        self.options = {**self.options, "labels": {"team": "Ärzte & Söhne"}}
        with pytest.raises(SubmitRefused, match=r"labels.*Invalid value"):
            await engine.submit(self.job(uri))
        await engine.delete(self.job(uri), 0.0)
