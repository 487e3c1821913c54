"""Jobs in the queues of a real Kueue: waiting is not failing, and to be taken back costs no restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.trainjob import RUNTIMES, TRAINJOBS
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import WorkerPhase
from airflow_elastic.testing.engine_conformance import running, until
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights, pod_spec
from tests.support.kubernetes.kube import JOBSETS, Watching
from tests.support.kubernetes.kueue import GPU, QUEUE, QUEUES, a_queue, body_of, queued, urgent, words_of
from tests.support.machine.patience import until_async

#: What is documented beside the rights of an engine itself.
RIGHTS = {"trainjob": ["kueue", "kueue, trainjob"]}


@pytest.fixture(autouse=True)
async def queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    async with a_queue(namespace, client, kubectl) as made:
        yield made


def job_of(engine: str, options: dict[str, Any], uri: Path, gpus: str = "1", **more: str) -> Job:
    """Two workers that run until they are ended."""
    spec = pod_spec(
        engine,
        {**options, "queue": QUEUE, **more},
        "faults/forever.py",
        workers=Workers(2, min=1, max=4, resources={GPU: gpus, "memory": "512Mi"}),
    )
    return Job(str(uri), spec, 1, 2)


def engine_of(name: str) -> KubeEngine:
    found = find_engine(name)
    assert isinstance(found, KubeEngine)
    return found


async def installed(client: Client, engine: KubeEngine) -> None:
    if not await client.knows(engine.kind.resource):
        pytest.skip(f"install {engine.kind.resource.needs} in the cluster to run this")


@pytest.mark.siblings
@pytest.mark.parametrize("name", ["job", "pytorchjob", "trainjob"])
async def test_it_waits_for_room_with_the_queues_own_words_and_then_runs(
    name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    client: Client,
    account: Callable[..., Awaitable[kube.Account]],
) -> None:
    await installed(client, engine_of(name))
    rights = documented_rights(name, *RIGHTS.get(name, ["kueue"]))
    engine = type(engine_of(name))(access=(await account(*rights)).access)
    del pod_options["kubeconfig"]  # it has its own
    first, second = (job_of(name, pod_options, shared_folder / each) for each in ("first", "second"))
    await engine.submit(first)
    try:
        await until(engine, first, running(2))
        await engine.submit(second)
        status = await until(engine, second, lambda status: queued(status) and "unused" in words_of(status))
        assert f"insufficient unused quota for {GPU}" in words_of(status)
        assert [worker.phase for worker in status.workers] == [WorkerPhase.PENDING] * 2
        await engine.delete(first, 0.0)
        await until(engine, second, running(2))
    finally:
        for job in (first, second):
            await engine.delete(job, 0.0)


@pytest.mark.siblings
@pytest.mark.parametrize("name", ["job", "trainjob"])
@pytest.mark.parametrize(
    ("gpus", "more", "words"),
    [
        ("1", {"queue": "nope"}, "LocalQueue nope doesn't exist"),
        ("64", {}, r"> maximum capacity"),
    ],
)
async def test_what_can_never_be_admitted_is_told_within_seconds(
    name: str,
    gpus: str,
    more: dict[str, str],
    words: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    client: Client,
) -> None:
    await installed(client, engine_of(name))
    engine = engine_of(name)
    job = job_of(name, pod_options, shared_folder / "run", gpus, **more)
    await engine.submit(job)
    try:
        await until(engine, job, lambda status: queued(status) and words in words_of(status))
    finally:
        await engine.delete(job, 0.0)


@pytest.mark.siblings("a queue takes a worker back, or admits some")
@pytest.mark.parametrize(
    "name", ["job", *(pytest.param(name, marks=pytest.mark.slow) for name in ("trainjob", "pytorchjob"))]
)
async def test_a_training_that_is_preempted_saves_waits_and_goes_on_at_no_cost(
    name: str,
    queue: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
) -> None:
    await installed(client, engine_of(name))
    options = {**pod_options, "queue": QUEUE, "queue_priority": f"low-{queue}"}
    workers = Workers(2, resources={GPU: "1", "memory": "3Gi"})
    spec = training(name, options, "--epochs=400", "--step-seconds=0.05", workers=workers)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        await client.create(JOBS, namespace, urgent(queue, pod_options["image"]))
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.PREEMPTION, FailureKind.PREEMPTED)
        assert "Preempted to accommodate a workload" in first.failure.reason
        saved = driven.state.checkpoint
        assert saved is not None
        assert first.progress is not None
        assert saved.step == first.progress.step, "it lost steps although it had been warned"
        await driven.until(lambda: _waits(driven.run.status()["waiting"]), "the queue")
        await client.delete(JOBS, namespace, "urgent", grace_seconds=0)
        await driven.at_step(saved.step + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 0)
    assert state.attempts[1].from_step == saved.step


@pytest.mark.siblings("a queue takes a worker back, or admits some")
async def test_with_quota_for_some_workers_it_begins_with_these(
    shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    workers = Workers(3, min=1, resources={GPU: "1", "memory": "3Gi"}, gather_seconds=1.0)
    options = {**pod_options, "queue": QUEUE}
    spec = training("job", options, "--epochs=400", "--step-seconds=0.05", workers=workers)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(10)
        assert driven.state.attempt.members == (0, 1)
        assert "admitted 2 of 3 workers" in str(driven.run.status()["waiting"])
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 1, 0)


def _waits(wait: Any) -> bool:
    return wait is not None and wait["state"] == "queued"


# -- the end of TrainJobs, which Kueue would let run again whenever somebody but it suspends them ----------------------


class Ending:
    """Queued TrainJobs whose pods cost nothing."""

    def __init__(self, client: Client, options: dict[str, Any], folder: Path) -> None:
        self.client, self.namespace, self.engine = client, options["namespace"], engine_of("trainjob")
        sleeping = {"spec": {"containers": [{"name": "node", "command": ["sleep", "600"]}]}}
        self._options, self._folder = {**options, "pod_template": sleeping}, folder

    def job(self, number: int, **more: Any) -> Job:
        return job_of("trainjob", self._options, self._folder / f"run-{number}", **{"gpus": "0", **more})

    async def nothing_comes(self, jobs: list[Job], *, admitted: bool = True, seconds: float = 5.0) -> None:
        """Delete them, and see that no pod comes in the seconds after it, and that nothing is left.

        Nor may one come meanwhile where all are admitted; the end of one makes room for another that waits.
        """
        pods, _ = await self.client.list(PODS, self.namespace)
        before = {pod["metadata"]["name"] for pod in pods}
        async with Watching(self.client, self.namespace) as names:
            await asyncio.gather(*(self.engine.delete(job, 0.0) for job in jobs))
            known = before if admitted else {*names, *before}
            await asyncio.sleep(seconds)
        assert names <= known
        for resource in (TRAINJOBS, JOBSETS, RUNTIMES, JOBS, PODS, WORKLOADS):
            left, _ = await self.client.list(resource, self.namespace)
            assert not left, resource.full_name

    async def workload(self, job: Job) -> dict[str, Any]:
        async def made() -> dict[str, Any] | None:
            found, _ = await self.client.list(WORKLOADS, self.namespace)
            owned = [one for one in found if one["metadata"]["ownerReferences"][0]["name"] == job.name]
            return owned[0] if owned else None

        return dict(await until_async(made, "the Workload") or {})


@pytest.fixture
async def ending(
    client: Client, pod_options: dict[str, Any], shared_folder: Path, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Ending]:
    made = Ending(client, pod_options, shared_folder)
    await installed(client, made.engine)
    yield made
    warnings = [one.getMessage() for one in caplog.get_records("call") if one.levelno >= logging.WARNING]
    assert not warnings, "something was not at rest when it was deleted"


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_a_queued_trainjob_that_is_suspended_alone_is_let_run_again(ending: Ending) -> None:
    """What the Workload is deactivated for. Its pods may have been made anew before that."""
    job, client = ending.job(1), ending.client
    await ending.engine.submit(job)
    try:
        await until(ending.engine, job, running(2))
        made = await client.patch(TRAINJOBS, ending.namespace, job.name, {"spec": {"suspend": True}})
        assert made["spec"]["suspend"]

        async def runs() -> bool:
            return not (await client.get(TRAINJOBS, ending.namespace, job.name))["spec"]["suspend"]

        await until_async(runs, "Kueue to let it run")
    finally:
        await ending.engine.delete(job, 0.0)


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_the_end_of_queued_trainjobs_makes_no_pods_anew(ending: Ending) -> None:
    for number in range(0, 10, 5):
        jobs = [ending.job(number + i) for i in range(5)]
        await asyncio.gather(*(ending.engine.submit(job) for job in jobs))
        await asyncio.gather(*(until(ending.engine, job, running(2)) for job in jobs))
        await ending.nothing_comes(jobs)


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_queued_trainjobs_end_that_have_never_run(ending: Ending) -> None:
    """They wait: for room, which the first one to go makes for the next; for a queue; for Kueue to see them at all."""
    jobs = [ending.job(number, gpus="1") for number in range(3)] + [ending.job(3, queue="nope")]
    await asyncio.gather(*(ending.engine.submit(job) for job in jobs))
    await asyncio.gather(*(until(ending.engine, job, queued) for job in jobs[-1:]))
    last = ending.job(4)
    await ending.engine.submit(last)
    await ending.nothing_comes([*jobs, last], admitted=False)


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_a_queued_trainjob_whose_workload_was_deleted_ends(ending: Ending) -> None:
    """Kueue makes another one, and lets the job run again."""
    job = ending.job(1)
    await ending.engine.submit(job)
    await until(ending.engine, job, running(2))
    found = await ending.workload(job)
    await ending.client.delete(WORKLOADS, ending.namespace, found["metadata"]["name"])
    await ending.engine.delete(job, 0.0)
    await ending.nothing_comes([])


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_a_queued_trainjob_that_has_failed_or_was_preempted_ends(ending: Ending, queue: str) -> None:
    low = {"queue_priority": f"low-{queue}"}
    failing, taken = ending.job(1), ending.job(2, gpus="1", **low)
    failing = replace(failing, spec=_running(failing.spec, "false"))
    await asyncio.gather(*(ending.engine.submit(job) for job in (failing, taken)))
    await until(ending.engine, failing, lambda status: status.failed)
    await until(ending.engine, taken, running(2))
    image = failing.spec.engine_options["image"]
    await ending.client.create(JOBS, ending.namespace, urgent(queue, image))
    await until(ending.engine, taken, lambda status: status.failed)
    await ending.client.delete(JOBS, ending.namespace, "urgent", grace_seconds=0)
    await ending.nothing_comes([failing, taken], admitted=False)


@pytest.mark.siblings("the end of queued TrainJobs")
async def test_trainjobs_end_that_a_default_queue_has_taken(
    ending: Ending, queue: str, namespace: str, client: Client
) -> None:
    """Where a queue is called default, Kueue queues each job of the namespace, though nobody has asked for it."""
    await client.create(QUEUES, namespace, body_of(QUEUES, "default", spec={"clusterQueue": queue}))

    async def at_work() -> bool:
        status = (await client.get(QUEUES, namespace, "default")).get("status", {})
        return any((one["type"], one["status"]) == ("Active", "True") for one in status.get("conditions", ()))

    await until_async(at_work, "the queue to be at work")
    jobs = [ending.job(number, queue=None) for number in range(5)]
    await asyncio.gather(*(ending.engine.submit(job) for job in jobs))
    await asyncio.gather(*(until(ending.engine, job, running(2)) for job in jobs))
    made = await client.get(TRAINJOBS, namespace, jobs[0].name)
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default"
    await ending.nothing_comes(jobs)


def _running(spec: RunSpec, *command: str) -> RunSpec:
    told = {"spec": {"containers": [{"name": "node", "command": [*command]}]}}
    return replace(spec, engine_options={**spec.engine_options, "pod_template": told})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["job", "pytorchjob", "trainjob"])
async def test_a_scale_step_in_a_queue_is_a_new_attempt(
    name: str, shared_folder: Path, pod_options: dict[str, Any], client: Client
) -> None:
    """Kueue would end all pods of a job that changes; and not see a TrainJob's, which would exceed its quota."""
    await installed(client, engine_of(name))
    workers = Workers(1, min=1, max=2, resources={GPU: "1", "memory": "3Gi"})
    options = {**pod_options, "queue": QUEUE}
    spec = training(name, options, "--epochs=400", "--step-seconds=0.05", workers=workers)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        driven.run.ask_scale(2, by="test")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.until(lambda: driven.state.attempt.submitted_at, "its submission")
        saved = driven.state.attempt.from_step
        assert saved >= 7
        await driven.at_step(saved + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert [attempt.workers for attempt in state.attempts] == [1, 2]
    assert (state.attempts[0].cause, state.restarts_used) == (Cause.SCALE_STEP, 0)
