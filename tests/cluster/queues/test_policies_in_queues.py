"""Runs that share the quota of a queue of Kueue, each with a number of workers that it chooses itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.core.state import Cause
from airflow_elastic.engines.kube.queues.kueue import WORKLOADS
from airflow_elastic.spec.run import RunSpec, Workers
from tests.cluster.kinds.test_training import training, world
from tests.cluster.test_policies import POLICY, check_each_sample_once, steps_of
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.kueue import CLUSTER_QUEUES, GPU, QUEUE, a_queue

ONE_GPU = {GPU: "1", "memory": "3Gi"}


@pytest.fixture
async def queue(namespace: str, client: Client, kubectl: kube.Kubectl) -> AsyncIterator[str]:
    """With 2 GPUs. Who has them keeps them: others wait, whatever their priority is."""
    async with a_queue(namespace, client, kubectl) as made:
        await client.patch(
            CLUSTER_QUEUES, "", made, {"spec": {"preemption": {"withinClusterQueue": "Never"}}}
        )
        yield made


def low(options: dict[str, Any], queue: str, samples: Path) -> RunSpec:
    return training(
        "job",
        {**options, "queue": QUEUE, "queue_priority": f"low-{queue}"},
        "--epochs=4000",
        "--sample-seconds=0.003",
        f"--samples={samples}",
        workers=Workers(1, min=1, max=2, resources=ONE_GPU, gather_seconds=5.0),
        scaling_policy=POLICY,
    )


def high(options: dict[str, Any], queue: str) -> RunSpec:
    return training(
        "job",
        {**options, "queue": QUEUE, "queue_priority": f"high-{queue}"},
        "--epochs=3",
        "--step-seconds=0.05",
        workers=Workers(1, resources=ONE_GPU),
    )


@pytest.mark.siblings("a policy gives back what others need")
async def test_a_run_gives_back_the_quota_that_a_higher_one_waits_for_and_takes_it_again(
    queue: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    seen = shared_folder / "samples"
    seen.mkdir()
    async with driving(shared_folder / "low", low(pod_options, queue, seen)) as first:
        await first.until(lambda: world(first) == 2, "2 ranks, in the quota that is free")
        await first.at_step(first.step + 5)
        async with driving(shared_folder / "high", high(pod_options, queue)) as second:
            wait = await second.until(lambda: second.run.status()["waiting"], "the queue's words")
            assert wait["state"] == "queued"
            await first.until(lambda: world(first) == 1, "one worker to leave for the high run")
            state = await second.end()
            assert state.outcome == "succeeded", state.reason
        await first.until(lambda: world(first) == 2, "2 ranks again, when the high run has ended")
        await first.at_step(first.step + 5)
        workloads, _ = await client.list(WORKLOADS, namespace)
        steps = [(one.decision.workers, one.decision.rule, one.decision.reason) for one in steps_of(first)]
        first.run.ask_stop(by="test")
        state = await first.end()
    assert [workers for workers, _, _ in steps] == [2, 1, 2], steps
    assert "others come first" in steps[1][2]
    assert f"workload {namespace}/job-" in steps[1][2]
    assert [one.workers for one in state.attempts] == [1, 2, 1, 2]
    assert [one.cause for one in state.attempts[:-1]] == [Cause.SCALE_STEP] * 3
    for before, after in zip(state.attempts, state.attempts[1:], strict=False):
        assert before.last_step == after.from_step, "steps were lost that nobody had saved"
    assert state.restarts_used == 0
    assert not [one for one in workloads if _evicted(one)]
    assert state.checkpoint is not None
    check_each_sample_once(seen, state.checkpoint.step // 10 * 10)


def _evicted(workload: dict[str, Any]) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Evicted", "True") for one in conditions)
