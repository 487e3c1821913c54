"""Stands in for DLRover's operator: the pod and Service of each master, and the phase that follows the pod.

The master, and all that it does, is the real one. `scripts/setup dlrover` installs it, for a Python before 3.13.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Access, Client, Conflict, KubeError, Missing, connect
from airflow_elastic.adapters.kube.resources import PODS, SERVICES
from airflow_elastic.engines.kube.kinds.elasticjob import ELASTICJOBS, MASTER_PORT, NAME_LABEL
from tests.support.kubernetes import kube

PYTHON = "ELASTIC_TEST_DLROVER"  # an interpreter that has dlrover, of a virtual environment on this machine
NEEDED = (
    f"run `scripts/setup dlrover`, and set {PYTHON} to .dlrover/bin/python as an absolute path, to run this"
)

_PHASES = {"Pending": "Pending", "Running": "Running", "Succeeded": "Succeeded", "Failed": "Failed"}


@dataclass
class Operator:
    """The stand-in. While it is not `here` it does nothing."""

    here: bool = True


def options(python: str, account: kube.Account) -> dict[str, Any]:
    """`engine_options` for pods that find dlrover in a folder of this machine; and who the master is."""
    venv = str(Path(python).parents[1])
    overlay = {
        "spec": {
            "volumes": [{"name": "dlrover", "hostPath": {"path": venv}}],
            "containers": [
                {"name": "main", "volumeMounts": [{"name": "dlrover", "mountPath": venv, "readOnly": True}]}
            ],
        }
    }
    resources = {"cpu": "100m", "memory": "2Gi"}
    return {
        "pod_template": overlay,
        "master": {
            "python": python,
            "resources": resources,
            "pod_template": overlay,
            "service_account": account.name,
        },
    }


@contextlib.asynccontextmanager
async def operating(client: Client, namespace: str, operator: Operator | None = None) -> AsyncIterator[None]:
    """Do the operator's work in one namespace."""
    task = asyncio.create_task(_work(client, namespace, operator or Operator()))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.contextmanager
def operating_beside(access: Access, namespace: str) -> Iterator[Operator]:
    """The same for a test that does not let other tasks go on while it waits: in a thread."""
    loop, ended, operator = asyncio.new_event_loop(), asyncio.Event(), Operator()

    async def work() -> None:
        client = await connect(access)
        try:
            async with operating(client, namespace, operator):
                await ended.wait()
        finally:
            await client.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(work(),))
    thread.start()
    try:
        yield operator
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


async def _work(client: Client, namespace: str, operator: Operator) -> None:
    done: set[str] = set()
    while True:
        with contextlib.suppress(KubeError):
            jobs, _ = await client.list(ELASTICJOBS, namespace)
            for job in jobs if operator.here else ():
                if job["metadata"]["uid"] not in done:  # suspended or not: it is the master that then waits
                    await _begin(client, namespace, job)
                    done.add(job["metadata"]["uid"])
                await _follow(client, namespace, job)
        await asyncio.sleep(0.3)


def _names(job: dict[str, Any]) -> tuple[str, str]:
    service = f"elasticjob-{job['metadata']['name']}-dlrover-master"
    return service, f"{service}-0"


async def _begin(client: Client, namespace: str, job: dict[str, Any]) -> None:
    service, pod = _names(job)
    owner = {
        "apiVersion": ELASTICJOBS.api_version,
        "kind": ELASTICJOBS.kind,
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    labels = {
        "app": "dlrover",
        NAME_LABEL: job["metadata"]["name"],
        "elasticjob.dlrover/replica-type": "dlrover-master",
        "elasticjob.dlrover/replica-index": "0",
    }
    template = job["spec"]["replicaSpecs"]["dlrover-master"]["template"]
    metadata = {"labels": labels, "ownerReferences": [owner]}
    port = {"port": MASTER_PORT, "targetPort": MASTER_PORT}
    for resource, body in (
        (PODS, {"metadata": {"name": pod, **metadata}, "spec": template["spec"]}),
        (
            SERVICES,
            {"metadata": {"name": service, **metadata}, "spec": {"selector": labels, "ports": [port]}},
        ),
    ):
        with contextlib.suppress(Conflict):
            await client.create(resource, namespace, body)


async def _follow(client: Client, namespace: str, job: dict[str, Any]) -> None:
    before = (job.get("status") or {}).get("phase")
    try:
        pod = await client.get(PODS, namespace, _names(job)[1])
        phase = _PHASES[pod["status"]["phase"]]
        if phase == "Running" and job["spec"].get("suspend"):
            phase = "Suspended"
    except Missing:
        phase = "Failed" if before else "Created"
    if phase == before or before in ("Succeeded", "Failed"):
        return
    conditions = []
    if phase == "Failed":
        text = "The job master failover count 1 is beyond the restart count 0."
        conditions.append({"type": "Failed", "status": "True", "reason": "JobFailed", "message": text})
    status = {"phase": phase, "status": {"conditions": conditions, "replicaStatuses": {}}}
    await client.patch(ELASTICJOBS, namespace, job["metadata"]["name"], {"status": status}, "status")
