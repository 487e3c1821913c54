"""What is left on a cluster when something was lost for good."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import JOBS
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import start_run
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.spec.run import Workers
from tests.support.cli import Shell
from tests.support.kubernetes.cluster import pod_spec


async def test_jobs_of_runs_that_are_gone_or_further_go_and_live_ones_stay(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    engine = JobEngine()
    spec = pod_spec("job", pod_options, "faults/forever.py", workers=Workers(1))
    live = Job(str(shared_folder / "live"), spec, 1, 1)
    start_run(open_store(live.run_uri), spec, engine=engine)
    gone = Job(str(shared_folder / "gone"), spec, 1, 1)
    for job in (live, gone):
        await engine.submit(job)

    async def names() -> list[str]:
        return sorted(job["metadata"]["name"] for job in (await client.list(JOBS, namespace))[0])

    shell = Shell(shared_folder)
    words = ("reap", "--namespace", namespace, "--kubeconfig", pod_options["kubeconfig"])
    tried = await asyncio.to_thread(shell, *words, "--dry-run")
    assert f"would remove job {namespace}/{gone.name}: its run is gone" in tried.stdout
    assert await names() == sorted([live.name, gone.name])
    done = await asyncio.to_thread(shell, *words)
    assert done.returncode == 0, done.stderr
    assert await names() == [live.name]
    await engine.delete(live, 0.0)
