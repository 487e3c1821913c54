"""Nodes that go away, or half of them does. They break the cluster for everybody: `faults` mends it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines.kube.render.pod import ATTEMPT_LABEL, MANAGED_BY, MANAGED_LABEL
from airflow_elastic.spec.run import Health, Workers
from tests.cluster.kinds.test_training import goes_on_from_memory, kept_by_buddies, training
from tests.support.driving import Driven, driving
from tests.support.kubernetes.cluster import DLROVER_TYPE, on_every_engine, pods_of


async def node_of_last(driven: Driven, client: Client, namespace: str) -> str:
    """The node of the last worker; those of the equipment's own programs are left alone."""
    return str((await pods_of(driven, client, namespace))[-1]["spec"]["nodeName"])


def apart(options: dict[str, Any]) -> dict[str, Any]:
    """Each worker of the first attempt on a node of its own, and none on the first node, where operators run.

    Later ones lie where there is no fault: that is not to be outweighed by what spreads them.
    """
    ours = {DLROVER_TYPE: "worker"} if "master" in options else {MANAGED_LABEL: MANAGED_BY}
    ours[ATTEMPT_LABEL] = "1"
    expressions = [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-1"]}]
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": ours},
    }
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {
        **options,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "pod_template": {"spec": {"topologySpreadConstraints": [spread]}},
    }


@on_every_engine
@pytest.mark.parametrize(
    "fault",
    [
        ("partition", "all"),
        pytest.param(("freeze", None), marks=pytest.mark.slow),
        pytest.param(("partition", "control-plane"), marks=pytest.mark.slow),
        pytest.param(("power-off", None), marks=pytest.mark.slow),
    ],
    ids=str,
)
async def test_a_lost_node_costs_one_restart_and_nothing_committed(
    fault: tuple[str, str | None],
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Any,
) -> None:
    spec = training(engine_name, apart(pod_options), "--epochs=400", "--step-seconds=0.05")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        node = await node_of_last(driven, client, namespace)
        faults.node(node, *fault)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.WORKER_LOST), first.failure
        committed = driven.state.checkpoint.step if driven.state.checkpoint else 0
        await driven.at_step(committed + 5)
        assert await node_of_last(driven, client, namespace) != node
        faults.heal()
        # What came back with the node may have gone on for a while: nothing of it counts.
        before = driven.step
        await driven.at_step(before + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (len(state.attempts), state.restarts_used) == (2, 1)
    assert state.attempts[1].from_step >= committed > 0


@pytest.mark.slow
@on_every_engine
@pytest.mark.parametrize("fault", [("partition", "all"), ("power-off", None)], ids=str)
async def test_a_node_that_falls_silent_takes_nothing_along_that_a_buddy_has(
    fault: tuple[str, str | None],
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Any,
) -> None:
    """Nobody says goodbye, and ranks that wait for it hang."""
    spec = kept_by_buddies(engine_name, apart(pod_options))
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(20)
        faults.node(await node_of_last(driven, client, namespace), *fault)
        await goes_on_from_memory(driven)
        faults.heal()
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (len(state.attempts), state.restarts_used) == (2, 1)


@pytest.mark.slow
@on_every_engine
async def test_nodes_that_do_not_reach_each_other_hang_and_the_clock_ends_it(
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Any,
) -> None:
    """Kubernetes sees nothing of it: all pods run."""
    health = Health(no_progress_seconds=10.0)
    spec = training(engine_name, apart(pod_options), "--epochs=400", "--step-seconds=0.05", health=health)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.node(await node_of_last(driven, client, namespace), "partition", "nodes")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        faults.heal()
        await driven.at_step(driven.state.attempts[1].from_step + 3)
        failure = driven.state.attempts[0].failure
        driven.run.ask_stop(by="test")
        await driven.end()
    assert failure is not None
    assert failure.kind in (FailureKind.NO_PROGRESS, FailureKind.WORKER_LOST)


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", ["job", "elasticjob"], indirect=True)
async def test_a_machine_that_failed_twice_is_avoided(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """Though the user likes it; it is the only one that the run has seen, so it is liked less than all others."""
    where = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-2"]}]
    liked = [{"weight": 50, "preference": {"matchExpressions": where}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": liked}}
    options = {**pod_options, "affinity": affinity}
    alone = Workers(1, resources={"memory": "3Gi"})
    spec = training(engine_name, options, "--epochs=400", "--step-seconds=0.05", workers=alone)
    machines = []
    async with driving(shared_folder / "run", spec) as driven:
        for attempt in (1, 2, 3):
            await driven.until(lambda n=attempt: len(driven.state.attempts) == n, f"attempt {attempt}")  # type: ignore[misc]
            newest = driven.state.checkpoint
            await driven.at_step((newest.step if newest else 0) + 3)
            machines.append(await node_of_last(driven, client, namespace))
            if attempt < 3:
                driven.kill_rank(0)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert machines[:2] == ["node-2", "node-2"]
    assert machines[2] != "node-2"
    assert state.avoid == ("node-2",)
