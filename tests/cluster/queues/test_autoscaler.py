"""A PyTorchJob that the cluster's own autoscaler changes, while the run trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Resource
from airflow_elastic.engines.kube.kinds.pytorchjob import PYTORCHJOBS
from airflow_elastic.spec.run import RunSpec, Workers
from tests.cluster.kinds.test_training import training, world
from tests.support.driving import driving

AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
METRICS = [
    {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
    }
]


async def followed(client: Client, options: dict[str, Any], count: int, most: int) -> RunSpec:
    """A training that follows an autoscaler."""
    if not await client.knows(PYTORCHJOBS):
        pytest.skip(f"install {PYTORCHJOBS.needs} in the cluster to run this")
    options = {**options, "elastic_policy": {"metrics": METRICS}}
    workers = Workers(count, min=1, max=most, resources={"memory": "3Gi"})
    return training("pytorchjob", options, "--epochs=4000", "--step-seconds=0.05", workers=workers)


@pytest.mark.timeout(1200)
async def test_the_run_follows_the_autoscaler_up_and_down(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """Nothing measures anything here; but an autoscaler keeps to its bounds without, so these are what is changed."""
    spec = await followed(client, pod_options, count=2, most=3)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(5)
        name = str(driven.state.attempt.job)
        made = (await client.get(AUTOSCALERS, namespace, name))["spec"]
        assert (made["minReplicas"], made["maxReplicas"], made["metrics"]) == (1, 3, METRICS)
        for bounds, wanted in (((3, 3), 3), ((1, 1), 1)):
            policy = dict(zip(("minReplicas", "maxReplicas"), bounds, strict=True))
            await client.patch(PYTORCHJOBS, namespace, name, {"spec": {"elasticPolicy": policy}})
            await driven.until(lambda n=wanted: driven.state.target == n, f"a target of {wanted}")  # type: ignore[misc]
            await driven.until(lambda n=wanted: world(driven) == n, f"{wanted} ranks")  # type: ignore[misc]
            await driven.at_step(driven.step + 5)
        before = driven.step
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 1, 0)
    assert state.checkpoint is not None
    assert state.checkpoint.step >= before


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_what_the_run_does_not_permit_is_put_back(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    spec = await followed(client, pod_options, count=1, most=1)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(5)
        place = (PYTORCHJOBS, namespace, str(driven.state.attempt.job))
        await client.patch(*place, {"spec": {"elasticPolicy": {"minReplicas": 2, "maxReplicas": 2}}})
        await driven.until(lambda: driven.state.planned_steps, "the autoscaler's step")
        owner = await client.get(*place)
        assert owner["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
        await driven.at_step(driven.step + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.target) == ("stopped", 1, 1)
