"""The training-operator with `--gang-scheduler-name=volcano` has a part in gangs. Volcano's own part is the test's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.pytorchjob import PYTORCHJOBS, PyTorchJobEngine
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS
from airflow_elastic.engines.kube.render.pod import JOB_LABEL
from airflow_elastic.spec.run import Workers
from airflow_elastic.testing.engine_conformance import running, until
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import pod_spec
from tests.support.machine.patience import until_async

OPERATOR = ("deployment/training-operator", "-n", "kubeflow")


@pytest.fixture
def asks_volcano(kubectl: kube.Kubectl) -> Iterator[None]:
    """The operator, as clusters with Volcano have it; then as it was."""
    there = kubectl("get", *OPERATOR, "-o", "json", "--ignore-not-found")
    if not there.strip() or not kubectl("get", "crd", PODGROUPS.full_name, "--ignore-not-found").strip():
        pytest.skip("install the training-operator in kubeflow, and Volcano's PodGroups, to run this")
    args = json.loads(there)["spec"]["template"]["spec"]["containers"][0].get("args", [])
    _rolled_out(kubectl, [*args, "--gang-scheduler-name=volcano"])
    yield
    _rolled_out(kubectl, args)


def _rolled_out(kubectl: kube.Kubectl, args: list[str]) -> None:
    change = [{"op": "add", "path": "/spec/template/spec/containers/0/args", "value": args}]
    kubectl("patch", *OPERATOR, "--type=json", "-p", json.dumps(change))
    kubectl("rollout", "status", *OPERATOR, "--timeout=120s")


@pytest.mark.slow
@pytest.mark.usefixtures("asks_volcano")
async def test_pods_are_made_when_the_gang_is_let_in_and_it_needs_the_fewest_workers(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str
) -> None:
    engine = PyTorchJobEngine()
    # Another scheduler places them here, for which a gang is nothing but an annotation.
    options = {**pod_options, "queueing": "volcano", "queue": "team", "scheduler": "default-scheduler"}
    workers = Workers(3, min=2, max=4, resources={"memory": "2Gi"})
    spec = pod_spec("pytorchjob", options, "faults/forever.py", launcher="torchrun", workers=workers)
    job = Job(str(shared_folder / "run"), spec, 1, 3)

    async def seen() -> bool:
        found = await client.get(PYTORCHJOBS, namespace, job.name)
        return bool(found.get("status", {}).get("conditions"))

    await engine.submit(job)
    try:
        await until_async(seen, "the operator to see the job")
        await client.patch(PODGROUPS, namespace, job.name, {"status": {"phase": "Pending"}})
        assert (await client.list(PODS, namespace, labels=f"{JOB_LABEL}={job.name}"))[0] == []
        await client.patch(PODGROUPS, namespace, job.name, {"status": {"phase": "Inqueue"}})
        await until(engine, job, running(3))
        gang = (await client.get(PODGROUPS, namespace, job.name))["spec"]
        assert (gang["minMember"], gang["queue"], gang["minResources"]) == (2, "team", {"memory": "4Gi"})
    finally:
        await engine.delete(job, 0.0)

    await kube.gone(client, PODGROUPS, namespace, job.name)
