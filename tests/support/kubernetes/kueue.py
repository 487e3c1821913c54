"""A queue of a real Kueue, and what tests ask of those who wait in it."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.spec.status import JobStatus, Waiting
from tests.support.kubernetes import kube

GROUP, VERSION = "kueue.x-k8s.io", "v1beta2"
QUEUE = "team"
GPU = "nvidia.com/gpu"


def of(plural: str, kind: str) -> Resource:
    return Resource(GROUP, VERSION, plural, kind)


FLAVORS = of("resourceflavors", "ResourceFlavor")
CLUSTER_QUEUES = of("clusterqueues", "ClusterQueue")
PRIORITIES = of("workloadpriorityclasses", "WorkloadPriorityClass")
QUEUES = of("localqueues", "LocalQueue")


@contextlib.asynccontextmanager
async def a_queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    """A queue of this test's own, with room for 2 GPUs, and the priorities `low-…` and `high-…` (the suffix)."""
    if not await client.knows(QUEUES):
        pytest.skip("install Kueue in the cluster to run this")
    own = f"t-{secrets.token_hex(3)}"
    quota = {GPU: "2", "memory": "64Gi", "cpu": "64"}
    covered = [{"name": name, "nominalQuota": amount} for name, amount in quota.items()]
    groups = [
        {
            "coveredResources": [one["name"] for one in covered],
            "flavors": [{"name": own, "resources": covered}],
        }
    ]
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": groups,
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    everywhere = [
        body_of(FLAVORS, own, spec={}),
        body_of(CLUSTER_QUEUES, own, spec=spec),
        body_of(PRIORITIES, f"low-{own}", value=10),
        body_of(PRIORITIES, f"high-{own}", value=1000),
    ]
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(_list(everywhere)))
    await client.create(QUEUES, namespace, body_of(QUEUES, QUEUE, spec={"clusterQueue": own}))
    yield own
    for body in reversed(everywhere):
        kubectl("delete", "--wait=false", f"{body['kind']}.{VERSION}.{GROUP}", body["metadata"]["name"])


def _list(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "List", "items": items}


def body_of(resource: Resource, name: str, **rest: Any) -> dict[str, Any]:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        **rest,
    }


def queued(status: JobStatus) -> bool:
    return status.waiting is Waiting.QUEUED and not status.failed


def words_of(status: JobStatus) -> str:
    return str(status.wait.reason) if status.wait else ""


def urgent(queue: str, image: str) -> dict[str, Any]:
    """Somebody's job of a higher priority, which takes both GPUs."""
    resources = {"requests": {GPU: "2"}, "limits": {GPU: "2"}}
    container = {
        "name": "main",
        "image": image,
        "command": ["sleep", "9999"],
        "resources": resources,
    }
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    labels = {
        "kueue.x-k8s.io/queue-name": QUEUE,
        "kueue.x-k8s.io/priority-class": f"high-{queue}",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "urgent", "labels": labels},
        "spec": {"template": {"spec": pod}},
    }
