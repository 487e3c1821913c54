"""Many jobs followed in one event loop, as in one triggerer: what does it cost while nothing happens to them?

`KUBECONFIG=... python -m tests.bench.scripts.watching ARM NAMESPACE JOBS SECONDS`: prints as JSON its share of a
processor in each fifth of that time, the bytes that it grew by and has, and how many seconds it followed them. ARM:

- `ours`: an `engine.watch` for each job;
- `floor`: jobs and pods are listed and watched once for all, and what comes is thrown away;
- `KubernetesJobTrigger`, `KubernetesPodTrigger`: Airflow's, one for each job or pod, with their own defaults.
"""

import asyncio
import gc
import json
import resource
import sys
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Access, Resource, connect
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.engines.kube.render.pod import MANAGED_BY, MANAGED_LABEL
from airflow_elastic.spec.run import RunSpec, Workers

PARTS = 5
SETTLE_SECONDS = 10.0


def job(number: int, namespace: str) -> Job:
    options = {"image": "localhost/none:1", "namespace": namespace}
    spec = RunSpec(command=("train.py",), engine="job", workers=Workers(2), engine_options=options)
    return Job(f"s3://bench/{number}", spec, 1, 2)


def pod(number: int) -> str:
    return f"pod-{number}"


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Arm:
    """What follows the jobs; each of `tasks` says in `there` when it has begun to."""

    def __init__(self, namespace: str, jobs: int) -> None:
        self.namespace, self.jobs = namespace, jobs
        self.there = asyncio.Semaphore(0)

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        raise NotImplementedError


class Ours(Arm):
    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        engine = JobEngine()
        return [self._follow(engine, job(number, self.namespace)) for number in range(self.jobs)]

    async def _follow(self, engine: JobEngine, one: Job) -> None:
        async for _ in engine.watch(one):
            self.there.release()


class Floor(Arm):
    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._follow(JOBS), self._follow(PODS)]

    async def _follow(self, kind: Resource) -> None:
        client = await connect(Access())
        labels = f"{MANAGED_LABEL}={MANAGED_BY}"
        version = (await client.list(kind, self.namespace, labels=labels))[1]
        async with client.watch(kind, self.namespace, labels=labels, version=version, seconds=7200) as events:
            self.there.release()
            async for _ in events:
                pass


class JobTriggers(Arm):
    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger

        return [
            self._follow(
                KubernetesJobTrigger(
                    job_name=job(number, self.namespace).name,
                    job_namespace=self.namespace,
                    pod_names=[],
                    pod_namespace=self.namespace,
                    base_container_name="base",
                )
            )
            for number in range(self.jobs)
        ]

    async def _follow(self, trigger: Any) -> None:
        self.there.release()
        async for event in trigger.run():
            raise AssertionError(f"it has ended: {event}")


class PodTriggers(JobTriggers):
    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger

        return [
            self._follow(
                KubernetesPodTrigger(
                    pod_name=pod(number),
                    pod_namespace=self.namespace,
                    trigger_start_time=datetime.now(UTC),
                    base_container_name="base",
                )
            )
            for number in range(self.jobs)
        ]


ARMS: dict[str, type[Arm]] = {
    "ours": Ours,
    "floor": Floor,
    "KubernetesJobTrigger": JobTriggers,
    "KubernetesPodTrigger": PodTriggers,
}


async def main(arm: Arm, seconds: float) -> dict[str, Any]:
    follow = arm.tasks()
    before, began = resident(), time.monotonic()
    tasks = [asyncio.create_task(one) for one in follow]
    for _ in tasks:
        await arm.there.acquire()
    await asyncio.sleep(SETTLE_SECONDS)
    shares = []
    for _ in range(PARTS):
        used, since = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds / PARTS)
        shares.append((time.process_time() - used) / (time.monotonic() - since))
    failed = [task.exception() for task in tasks if task.done()]
    assert not failed, failed[0]
    lasted, now = time.monotonic() - began, resident()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"cpu": shares, "grown": now - before, "resident": now, "seconds": lasted}


if __name__ == "__main__":
    name, namespace, jobs, seconds = sys.argv[1:]
    arm = ARMS[name](namespace, int(jobs))
    print(json.dumps(asyncio.run(main(arm, float(seconds)))))
