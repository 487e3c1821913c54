"""Killing workers of runs on a real cluster, and finding out where the time goes until the next attempt is there."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Access, Client, Resource, connect
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kinds.trainjob import TrainJobEngine
from airflow_elastic.engines.kube.kinds.trainjob_suspend import JobAddress, suspend
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.spec.run import RestartPolicy, Workers
from airflow_elastic.testing.engine_conformance import running, until
from tests.bench.support.recovery import POLL_SECONDS, WORLD, Moments
from tests.support.driving import Driven, driving
from tests.support.kubernetes.cluster import pod_spec
from tests.support.machine.patience import until_async
from tests.support.runs.faults import Faults

#: What happens between the deletion of a pod and the first step, in this order; each is told by the end of it.
STAGES = (
    ("the cluster has removed its pod", "removed"),
    ("the controller knows", "known"),
    ("old attempt is gone", "gone"),
    ("next one is created", "made"),
    ("its pods are scheduled", "scheduled"),
    ("containers run", "running"),
    ("agents have met", "met"),
    ("rank processes started", "rank started"),
    ("Python and rank.py started", "script reached"),
    ("torch imported", "torch imported"),
    ("the rest imported", "all imported"),
    ("ranks joined", "ranks joined"),
    ("model built, wrapped", "model built"),
    ("checkpoint restored", "restored"),
    ("first step done", "first step"),
)

#: Those that are the controller's own.
OURS = ("the controller knows", "old attempt is gone", "next one is created")

#: A run avoids machines on which it has failed twice. A cluster of three has one left, however they fell.
LOSSES_OF_A_RUN = 5


@dataclass
class Loss:
    """One worker lost: at `at`, and the moments that followed."""

    at: float
    moments: dict[str, float] = field(default_factory=dict)

    def after(self, moment: str) -> float:
        return self.moments[moment] - self.at

    def stages(self) -> dict[str, float]:
        """Seconds of each stage that was reached."""
        spent, reached = {}, self.at
        for name, moment in STAGES:
            if moment in self.moments:
                now = max(reached, self.moments[moment])
                spent[name], reached = now - reached, now
        return spent


class Witness:
    """Watches a namespace from a thread of its own, as any other client would, and keeps when it first saw what.

    `at` has the moments by job, by pod (empty: the job's own object) and by what was seen.
    """

    def __init__(self, access: Access, namespace: str, owners: Resource, label: str = JOB_LABEL) -> None:
        self.at: dict[tuple[str, str, str], float] = {}
        self._label = label  # of pods, whose value is their job
        self._access, self._namespace, self._owners = access, namespace, owners
        self._begun, self._over = threading.Barrier(2), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._look()), daemon=True)

    async def __aenter__(self) -> Witness:
        self._thread.start()
        await asyncio.to_thread(self._begun.wait, 60)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        await asyncio.to_thread(self._thread.join, 60)

    def pods(self, job: str, what: str) -> dict[str, float]:
        """Which pods of a job have come so far, and when."""
        assert self._thread.is_alive(), "the watch has broken off"
        return {pod: at for (of, pod, seen), at in [*self.at.items()] if pod and (of, seen) == (job, what)}

    def job(self, job: str, what: str) -> float | None:
        assert self._thread.is_alive(), "the watch has broken off"
        return self.at.get((job, "", what))

    async def _look(self) -> None:
        self._loop = asyncio.get_running_loop()
        client = await connect(self._access)
        begun = asyncio.Semaphore(0)
        try:
            async with asyncio.TaskGroup() as watches:
                tasks = [
                    watches.create_task(self._watch(client, kind, begun)) for kind in (self._owners, PODS)
                ]
                for _ in tasks:
                    await begun.acquire()
                await asyncio.to_thread(self._begun.wait)
                await self._over.wait()
                for task in tasks:
                    task.cancel()
        finally:
            await client.close()
            await asyncio.sleep(0.1)  # for the connections to be closed, before their event loop is

    async def _watch(self, client: Client, kind: Resource, begun: asyncio.Semaphore) -> None:
        _, version = await client.list(kind, self._namespace)
        async with client.watch(kind, self._namespace, labels="", version=version, seconds=7200) as events:
            begun.release()
            async for event in events:
                if event["type"] != "BOOKMARK":
                    self._see(kind, event, time.time())

    def _see(self, kind: Resource, event: dict[str, Any], now: float) -> None:
        metadata = event["object"]["metadata"]
        if kind == self._owners:
            self.at.setdefault((metadata["name"], "", "made"), now)
        elif (
            job := (labels := metadata.get("labels", {})).get(self._label)
        ) and "dlrover-master" not in labels.values():
            for what in seen_of(event):
                self.at.setdefault((job, metadata["name"], what), now)


def seen_of(event: dict[str, Any]) -> set[str]:
    """What an event of a pod shows."""
    pod = event["object"]
    states = [one["state"] for one in pod.get("status", {}).get("containerStatuses", ())]
    shown = {
        "made": True,
        "gone": event["type"] == "DELETED",
        "scheduled": bool(pod["spec"].get("nodeName")),
        "running": bool(states) and all("running" in state for state in states),
        "failed": any("terminated" in state for state in states),
    }
    return {what for what, holds in shown.items() if holds}


# -- a worker's container is killed ----------------------------------------------------------------------------------


async def kills(
    engine: str, folder: Path, options: dict[str, Any], access: Access, faults: Faults, times: int
) -> list[Loss]:
    """Kill -9 all that runs in a pod, again and again: it counts from when this shows in the API."""
    done: list[Loss] = []
    while len(done) < times:
        some = min(times - len(done), LOSSES_OF_A_RUN)
        done += await _kills(engine, folder / f"{engine}-{len(done)}", options, access, faults, some)
    return done


async def _kills(
    engine: str, uri: Path, options: dict[str, Any], access: Access, faults: Faults, times: int
) -> list[Loss]:
    restart = RestartPolicy(backoff_limit=10_000, backoff_seconds=0.001, backoff_max_seconds=0.001)
    spec = pod_spec(engine, options, "faults/forever.py", workers=Workers(WORLD), restart=restart)
    kind, luck, moments, done = kind_of(engine), random.Random(1), Moments(), list[Loss]()
    async with (
        Witness(access, options["namespace"], kind, _engine(engine).kind.pod_label) as witness,
        driving(uri, spec, poll_seconds=POLL_SECONDS, observer=moments) as driven,
    ):
        for number in range(1, times + 1):
            job = Moment(driven, witness, moments, number)

            def at_work(job: Moment = job) -> bool:
                agents = len(list((uri / "jobs" / job.name).glob("node-*/agent-*.json")))
                return len(job.alive) == WORLD and agents == len(witness.pods(job.name, "running"))

            await driven.until(at_work, f"the pods and agents of attempt {number}")
            await asyncio.sleep(luck.uniform(0.5, 1.5))
            pod = luck.choice(job.alive)
            await kill(faults, options["namespace"], pod)
            following = Moment(driven, witness, moments, number + 1)
            made = await driven.until(lambda next=following: next.made, f"attempt {number + 1}")  # type: ignore[misc]
            loss = Loss(witness.pods(job.name, "failed")[pod], {"made": made})
            loss.moments |= journaled(moments, number)
            done.append(loss)
    return done


@dataclass
class Moment:
    """An attempt of a run, as its controller and a witness see it. Its job may be that of an earlier one."""

    driven: Driven
    witness: Witness
    moments: Moments
    number: int

    @property
    def name(self) -> str:
        """Of its job, once it is submitted."""
        attempts = self.driven.state.attempts
        return attempts[self.number - 1].job or "" if len(attempts) >= self.number else ""

    @property
    def alive(self) -> list[str]:
        """The pods that run."""
        ended = {*self.witness.pods(self.name, "failed"), *self.witness.pods(self.name, "gone")}
        return sorted(set(self.witness.pods(self.name, "running")) - ended)

    @property
    def made(self) -> float | None:
        """When there was its job; or in a job that was there, the pod in place of the lost one."""
        if not self.name:
            return None
        if self.driven.state.attempts[self.number - 1].home is None:
            return self.witness.job(self.name, "made")
        since = self.moments.at[self.number - 1, "WorkersEnded"]
        return min((at for at in self.witness.pods(self.name, "made").values() if at > since), default=None)


async def kill(faults: Faults, namespace: str, pod: str) -> None:
    """Kill all that runs in a pod. The program is astonished at processes that have ended with those before them."""
    with contextlib.suppress(AssertionError):
        await asyncio.to_thread(faults.pod, namespace, pod, "signal", "KILL")


def kind_of(engine: str) -> Resource:
    return _engine(engine).kind.resource


def _engine(name: str) -> KubeEngine:
    found = find_engine(name)
    assert isinstance(found, KubeEngine)
    return found


def journaled(moments: Moments, lost: int) -> dict[str, float]:
    names = {
        "known": "WorkersEnded",
        "gone": "AttemptGone",
    }  # of one whose job goes on nothing has to be gone
    return {what: moments.at[lost, name] for what, name in names.items() if (lost, name) in moments.at}


async def plain_jobs(
    access: Access, client: Client, options: dict[str, Any], faults: Faults, times: int
) -> list[float]:
    """The baseline: a Job that is left to Kubernetes, and its pod killed: seconds until it has another one."""
    found = []
    async with Witness(access, options["namespace"], JOBS) as witness:
        for name in (f"plain-{number}" for number in range(times)):
            await client.create(JOBS, options["namespace"], plain_job(name, options, "sleep", "1d"))
            await until_async(lambda name=name: witness.pods(name, "running"), "a pod that runs")
            (pod,) = witness.pods(name, "running")
            await kill(faults, options["namespace"], pod)
            await until_async(lambda name=name: len(witness.pods(name, "made")) == 2, "another pod")
            found.append(max(witness.pods(name, "made").values()) - witness.pods(name, "failed")[pod])
            await client.delete(JOBS, options["namespace"], name)
    return found


async def creations(access: Access, client: Client, options: dict[str, Any], times: int) -> list[float]:
    """The floor: nothing but to create an object: seconds from then until a watch shows it."""
    found = []
    async with Witness(access, options["namespace"], JOBS) as witness:
        for name in (f"floor-{number}" for number in range(times)):
            body = plain_job(name, options, "true")
            began = time.time()
            await client.create(JOBS, options["namespace"], body | {"spec": body["spec"] | {"suspend": True}})
            found.append(await until_async(lambda name=name: witness.job(name, "made"), "the object") - began)
            await client.delete(JOBS, options["namespace"], name)
    return found


async def rests(folder: Path, options: dict[str, Any], access: Access, times: int) -> list[float]:
    """What the end of a TrainJob takes of its operators: from its suspension until all of them have heard of it."""
    engine, spec = TrainJobEngine(access=access), pod_spec("trainjob", options, "faults/forever.py")
    owners, _, children = engine._queries(options_of(spec, engine.kind.options))
    found = []
    for job in (Job(str(folder / f"rest-{number}"), spec, 1, WORLD) for number in range(times)):
        await engine.submit(job)
        await until(engine, job, running(WORLD))
        async with hub(access) as shared:
            made = await shared.client.get(engine.kind.resource, options["namespace"], job.name)
            uid, child = made["metadata"]["uid"], engine.child.name(job)
            began = time.time()
            await suspend(JobAddress(shared, job.name, child, uid, owners, children))
            found.append(time.time() - began)
        await engine.delete(job, 0.0)
    return found


def plain_job(name: str, options: dict[str, Any], *command: str, pods: int = 1) -> dict[str, Any]:
    """An Indexed Job of one container a pod, with nothing of ours but the label that a witness knows it by."""
    container: dict[str, Any] = {"name": "main", "image": options["image"], "command": [*command]}
    template: dict[str, Any] = {
        "metadata": {"labels": {JOB_LABEL: name}},
        "spec": {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0},
    }
    spec = {"completionMode": "Indexed", "completions": pods, "parallelism": pods, "template": template}
    return {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "metadata": {"name": name}, "spec": spec}
