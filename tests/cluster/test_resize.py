"""Memory of running workers, changed in place by a real cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.api import Job, Outcome
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.engines.quantities import number_of
from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes.cluster import documented_rights, pod_spec
from tests.support.kubernetes.kube import Account

NODES = Resource("", "v1", "nodes", "Node")


@pytest.fixture
async def node(client: Client) -> tuple[str, int]:
    """A machine, and the bytes that it has for pods."""
    found = await client._json("GET", NODES, "/api/v1/nodes", "list nodes")
    one = found["items"][0]
    return one["metadata"]["name"], int(number_of(one["status"]["allocatable"]["memory"]))


async def test_memory_of_running_workers_is_raised_in_place(
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    node: tuple[str, int],
    account: Callable[..., Awaitable[Account]],
) -> None:
    """Done, deferred while another one has the room, and refused where there can never be any; nobody is restarted."""
    rights = await account(*documented_rights("job", "resize"))
    options = {name: value for name, value in pod_options.items() if name != "kubeconfig"}
    machine, memory = node
    options["node_selector"] = {"kubernetes.io/hostname": machine}
    spec = pod_spec(
        "job", options, "faults/forever.py", workers=Workers(2, resources={"memory": "128Mi", "cpu": "50m"})
    )
    engine, job = JobEngine(access=rights.access), Job(str(shared_folder / "run"), spec, 1, 2)
    await engine.submit(job)
    try:
        await until(engine, job, running(2))
        done = await engine.resize(job, {"memory": "192Mi"})
        assert [(one.worker, one.outcome, one.reason) for one in done] == [
            ("node-0", Outcome.DONE, None),
            ("node-1", Outcome.DONE, None),
        ]
        half = await engine.resize(job, {"memory": str(memory * 6 // 10)})
        assert {one.outcome for one in half} == {Outcome.DONE, Outcome.DEFERRED}
        assert any("enough resource: memory" in str(one.reason) for one in half)
        never = await engine.resize(job, {"memory": str(memory * 2)})
        assert {one.outcome for one in never} == {Outcome.REFUSED}
        assert "enough allocatable resources" in str(never[0].reason)
        pods, _ = await client.list(PODS, namespace, labels=f"{JOB_LABEL}={job.name}")
        assert [one["status"]["containerStatuses"][0]["restartCount"] for one in pods] == [0, 0]
    finally:
        await engine.delete(job, 0.0)


async def test_without_the_right_it_is_refused_with_what_is_missing(
    shared_folder: Path, pod_options: dict[str, Any], account: Callable[..., Awaitable[Account]]
) -> None:
    options = {name: value for name, value in pod_options.items() if name != "kubeconfig"}
    spec = pod_spec("job", options, "faults/forever.py", workers=Workers(1, resources={"memory": "128Mi"}))
    engine = JobEngine(access=(await account(*documented_rights("job"))).access)
    job = Job(str(shared_folder / "run"), spec, 1, 1)
    await engine.submit(job)
    try:
        await until(engine, job, running(1))
        (one,) = await engine.resize(job, {"memory": "192Mi"})
        assert one.outcome is Outcome.REFUSED
        assert "pods/resize" in str(one.reason)
    finally:
        await engine.delete(job, 0.0)
