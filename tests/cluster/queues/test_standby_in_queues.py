"""Standby workers in the queues of a real Kueue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.spec.run import Workers
from tests.cluster.kinds.test_training import kept_by_buddies
from tests.cluster.test_standby import ended, ready, trained_by
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import pods_of
from tests.support.kubernetes.kueue import QUEUE, a_queue
from tests.support.runs.faults import Faults
from tests.support.runs.losses import goes_on_in_its_job


@pytest.fixture
async def queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    async with a_queue(namespace, client, kubectl) as made:
        yield made


async def test_in_a_queue_the_standby_worker_has_quota_from_the_start(
    queue: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """It takes the place of a lost worker within the admitted Job, which gets no further pods."""
    spec = kept_by_buddies("job", {**pod_options, "queue": QUEUE})
    spec = replace(spec, workers=Workers(2, resources={"memory": "3Gi"}, standby=1))
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(20)
        await ready(driven, "node-2")
        (workload,) = (await client.list(WORKLOADS, namespace))[0]
        assert [part["count"] for part in workload["spec"]["podSets"]] == [3]
        pods = await pods_of(driven, client, namespace)
        assert driven.state.checkpoint is None
        faults.pod(namespace, pods[1]["metadata"]["name"], "signal")
        await goes_on_in_its_job(driven)
        await trained_by(driven, 0, 2)
        assert await ended(driven) == ("stopped", 2, 1)
