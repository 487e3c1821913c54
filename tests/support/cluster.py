"""What every cluster engine must do, beyond the conformance suite: subclass it, and say which engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.classify import classify
from airflow_elastic.core.state import Failure, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.pod import JOB_LABEL
from airflow_elastic.spec.errors import SubmitRefused
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from airflow_elastic.testing.engine_conformance import EngineConformance, running, until
from tests.support import kube

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
SCRIPTS = Path(__file__).parent / "scripts"
CHECKOUT = str(Path(__file__).parents[2])
DOCS = Path(CHECKOUT) / "docs"


def documented_rights(*names: str) -> list[dict[str, Any]]:
    """The rules that the documentation gives for an engine, or for a queue."""
    text = "".join((DOCS / page).read_text() for page in ("kubernetes.md", "engines.md"))
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


class ClusterEngine(EngineConformance):
    """The conformance suite, and what can happen to pods. Set `engine_name`."""

    engine_name: str

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
        return pod_spec(self.engine_name, self.options, "forever.py", **changes)

    def ending(self, uri: str, *how: str, workers: int = 1) -> Job:
        """A job whose rank 0 ends as scripts/leave.py is told."""
        spec = pod_spec(self.engine_name, self.options, "leave.py", *how, workers=Workers(workers))
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
            assert "leave.py" in (failure.traceback or "")

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

    # -- what is in the way --------------------------------------------------------------------------------------

    async def test_without_room_it_waits_for_capacity(self, engine: KubeEngine, uri: str) -> None:
        spec = self.make_spec(workers=Workers(2, resources={"nvidia.com/gpu": "64"}))
        job = Job(uri, spec, 1, 2)
        async with self.live(engine, job):
            status = await until(engine, job, lambda status: status.waiting is Waiting.CAPACITY)
        assert status.wait is not None
        assert "nvidia.com/gpu" in (status.wait.reason or "")

    async def test_a_quota_that_is_used_up_is_told(
        self, engine: KubeEngine, uri: str, client: Client
    ) -> None:
        namespace = self.options["namespace"]
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
        await client.create(QUOTAS, namespace, quota)
        await kube.until(lambda: self._counted(client), "the quota to be counted")
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

        await kube.until(none_left, "the pods to go, which their nodes have been told to end")

    @pytest.mark.parametrize("name", ["Ein.Name_mit-ALLEM", "x" * 200, "0", "a--b", "UPPER"])
    async def test_names_of_runs_may_be_any(self, engine: KubeEngine, uri: str, name: str) -> None:
        job = Job(uri, self.make_spec(name=name, workers=Workers(1)), 1, 1)
        async with self.live(engine, job):
            await until(engine, job, running(1))
