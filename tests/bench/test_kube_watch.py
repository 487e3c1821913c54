"""What watching many jobs on a cluster costs: requests to the API server, and processor time here."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client, connect
from airflow_elastic.adapters.kube.resources import JOBS
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.job import JobEngine, JobKind
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.spec.run import RunSpec, Workers
from tests.bench.figures import count, heading, verdict
from tests.cluster.test_job import documented_rights
from tests.support import kube

KUBECONFIG = os.environ.get("KUBECONFIG")
CLUSTER = os.environ.get(kube.CLUSTER)


def job(number: int, namespace: str) -> Job:
    spec = RunSpec(
        command=("train.py",),
        engine="job",
        workers=Workers(2),
        engine_options={"image": "localhost/none:1", "namespace": namespace},
    )
    return Job(f"s3://bench/{number}", spec, 1, 2)


async def create(client: Client, namespace: str, jobs: list[Job]) -> None:
    """The jobs' objects, suspended: it is their watching that is measured, not their pods."""
    limit = asyncio.Semaphore(20)

    async def one(made: Job) -> None:
        body = dict(JobKind().render(made, options_of(made.spec)))[JOBS]
        async with limit:
            await client.create(JOBS, namespace, {**body, "spec": {**body["spec"], "suspend": True}})

    await asyncio.gather(*map(one, jobs))


async def watch(access: Access, jobs: list[Job], seconds: float) -> dict[str, float]:
    """Follow all jobs for a while; processor seconds and bytes of this process meanwhile."""
    engine = JobEngine(access=access)
    there = asyncio.Semaphore(0)

    async def follow(one: Job) -> None:
        async for _ in engine.watch(one):
            there.release()

    before = _memory()
    tasks = [asyncio.create_task(follow(one)) for one in jobs]
    for _ in jobs:
        await there.acquire()
    began = time.process_time()
    grown = _memory() - before
    await asyncio.sleep(seconds)
    spent = time.process_time() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return {"cpu": spent, "bytes": grown}


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


@pytest.mark.bench
async def test_watching_many_jobs() -> None:
    if not KUBECONFIG or not CLUSTER:
        pytest.skip(f"set KUBECONFIG and {kube.CLUSTER} to a cluster for tests whose audit log can be read")
    jobs_wanted, seconds = count("KUBE_JOBS", 1000), count("SECONDS", 300)
    heading(f"{jobs_wanted} jobs watched on a cluster, for {seconds} s")
    admin = Access(kubeconfig=KUBECONFIG)
    namespace = kube.namespace_name("bench-watch")
    await kube.create_namespace(admin, namespace)
    client = await connect(admin)
    try:
        account = await kube.create_account(admin, namespace, documented_rights("job"))
        jobs = [job(number, namespace) for number in range(jobs_wanted)]
        await create(client, namespace, jobs)
        since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = await watch(account.access, jobs, float(seconds))
        said = kube.Faults(CLUSTER).audit(user=account.user, since=since)
    finally:
        await client.close()
        await kube.delete_namespace(admin, namespace)
    report(jobs_wanted, seconds, found, said)


def report(jobs: int, seconds: int, found: dict[str, Any], said: str) -> None:
    minutes = seconds / 60
    lines = [line.split() for line in said.splitlines() if line.strip()]
    requests = sum(int(line[0]) for line in lines if line[0].isdigit())
    print(said.rstrip())
    print(f"  requests, to begin with and in {seconds} s: {requests}")
    print(f"  processor time: {1000 * found['cpu'] / jobs / minutes:.3f} ms per job and minute")
    print(f"  memory: {found['bytes'] / jobs / 1024:.1f} KiB per job")
    verdict("requests per job and minute", requests / jobs / minutes, 0.06)
    verdict("processor time per job and minute", 1000 * found["cpu"] / jobs / minutes, 1.0, " ms")
