"""Parts of a cluster that fail while a training goes on: what costs nothing, what costs one restart."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.state import Cause, FailureKind, RunState
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.spec.run import Workers
from tests.cluster.faults.test_node_faults import apart, node_of_last
from tests.cluster.kinds.test_training import training
from tests.support.driving import Driven, driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import GPU, last_pod, on_every_engine, somebody, suspend
from tests.support.runs.faults import Faults

STEP_SECONDS = 0.05
OUTAGE_SECONDS = 5.0

#: The Deployments that an engine's operator is made of, by namespace; that of a Job is Kubernetes' own.
OPERATORS = {
    "pytorchjob": [("kubeflow", "training-operator")],
    "trainjob": [
        ("kubeflow-system", "kubeflow-trainer-controller-manager"),
        ("jobset-system", "jobset-controller-manager"),
    ],
}
FOREVER = ("--epochs=4000", f"--step-seconds={STEP_SECONDS}")


async def finish(driven: Driven) -> RunState:
    driven.run.ask_stop(by="test")
    return await driven.end()


# -- the API server ----------------------------------------------------------------------------------------------------


@on_every_engine
@pytest.mark.parametrize("seconds", [15, pytest.param(120, marks=pytest.mark.slow)])
async def test_training_does_not_notice_that_the_api_server_is_away(
    engine_name: str, seconds: int, shared_folder: Path, pod_options: dict[str, Any], faults: Faults
) -> None:
    spec = training(engine_name, pod_options, *FOREVER)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.apiserver("stop")
        before = driven.step
        await driven.at_step(
            before + round(seconds / STEP_SECONDS / 2)
        )  # its steps take more than they sleep
        assert len(driven.state.attempts) == 1
        faults.heal()
        before = driven.step
        await driven.at_step(before + 5)
        state = await finish(driven)
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 1, 0)


@pytest.mark.slow
@on_every_engine
async def test_a_worker_that_dies_while_the_api_server_is_out_of_reach_is_replaced_afterwards(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], faults: Faults
) -> None:
    spec = training(engine_name, pod_options, *FOREVER)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.control_plane("front-door", "stop")  # for us: the cluster itself sees the pod end
        driven.kill_agent_of(1)
        before = time.monotonic()
        await driven.until(lambda: time.monotonic() - before > OUTAGE_SECONDS, "the end of the outage")
        assert len(driven.state.attempts) == 1
        faults.heal()
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        await driven.at_step((driven.state.checkpoint.step if driven.state.checkpoint else 0) + 3)
        state = await finish(driven)
    assert first.cause is Cause.FAILURE, first
    assert (len(state.attempts), state.restarts_used) == (2, 1)
    assert state.attempts[1].from_step >= 5


@pytest.mark.slow
@on_every_engine
async def test_a_rank_that_dies_meanwhile_is_followed_in_place(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], faults: Faults
) -> None:
    """Agents and the run reach each other by its storage: nothing of that needs the cluster."""
    spec = training(engine_name, pod_options, *FOREVER)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.control_plane("front-door", "stop")
        driven.kill_rank(1)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.at_step((driven.state.checkpoint.step if driven.state.checkpoint else 0) + 3)
        faults.heal()
        state = await finish(driven)
    assert [attempt.home for attempt in state.attempts] == [None, 1]
    assert state.restarts_used == 1


# -- nodes -------------------------------------------------------------------------------------------------------------


@on_every_engine
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reboot", "stop-kubelet"])
async def test_a_node_that_goes_down_or_dumb_costs_one_restart(
    engine_name: str,
    fault: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """A node whose kubelet is silent trains on until the cluster gives it up: nothing that it saves then is lost."""
    spec = training(engine_name, apart(pod_options), *FOREVER)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.node(await node_of_last(driven, client, namespace), fault)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first = driven.state.attempts[0]
        assert first.failure is not None
        assert first.cause is Cause.FAILURE, first.failure
        committed = driven.state.checkpoint.step if driven.state.checkpoint else 0
        await driven.at_step(committed + 5)
        faults.heal()
        state = await finish(driven)
    assert (len(state.attempts), state.restarts_used) == (2, 1)
    assert state.attempts[1].from_step >= committed > 0


@on_every_engine
@pytest.mark.slow
async def test_a_gpu_gone_unhealthy_ends_nothing_and_no_later_attempt_waits_for_it(
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """Kubernetes lets a pod run whose GPU fails; its node has less to give from then on."""
    whole = Workers(1, resources={"memory": "3Gi", GPU: "4"})
    spec = training(engine_name, apart(pod_options), *FOREVER, workers=whole)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        node = await node_of_last(driven, client, namespace)
        faults.node(node, "gpu-unhealthy", 1)
        before = driven.step
        await driven.at_step(before + 5)
        assert len(driven.state.attempts) == 1
        faults.pod(namespace, await last_pod(driven, client, namespace), "signal", "KILL")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.at_step(driven.state.attempts[1].from_step + 3)
        assert await node_of_last(driven, client, namespace) != node
        state = await finish(driven)
    assert state.restarts_used == 1


# -- controllers and priorities ----------------------------------------------------------------------------------------


@on_every_engine
@pytest.mark.slow
async def test_an_operator_that_is_away_is_waited_for(
    engine_name: str,
    request: pytest.FixtureRequest,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
    faults: Faults,
) -> None:
    def operators(replicas: int) -> None:
        if engine_name == "elasticjob":
            request.getfixturevalue("dlrover_operator").here = replicas > 0
            return
        for of, name in OPERATORS.get(engine_name, ()):
            kubectl("-n", of, "scale", f"deployment/{name}", f"--replicas={replicas}")
        for of, name in OPERATORS.get(engine_name, ()):
            kubectl("-n", of, "rollout", "status", f"deployment/{name}", "--timeout=120s")
        if engine_name not in OPERATORS:
            faults.control_plane("kube-controller-manager", "start" if replicas else "stop")

    spec = training(engine_name, pod_options, *FOREVER)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        operators(0)
        try:
            before = driven.step
            await driven.at_step(before + 10)
            faults.pod(namespace, await last_pod(driven, client, namespace), "signal", "KILL")
            await driven.until(lambda: driven.state.attempts[-1].number == 2, "the second attempt")
            before = time.monotonic()
            await driven.until(lambda: time.monotonic() - before > OUTAGE_SECONDS, "the end of the outage")
            assert (len(driven.state.attempts), driven.state.restarts_used) == (2, 1)
        finally:
            operators(1)
        await driven.at_step(driven.state.attempt.from_step + 3)
        state = await finish(driven)
    assert (len(state.attempts), state.restarts_used) == (2, 1)


@on_every_engine
@pytest.mark.slow
async def test_preempted_by_a_pod_of_higher_priority_it_saves_waits_and_goes_on_at_no_cost(
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
) -> None:
    low, high = f"low-{namespace[-6:]}", f"high-{namespace[-6:]}"
    of_dlrover = engine_name == "elasticjob"
    if of_dlrover:  # it knows two classes, by these names
        low, high = "low", "high"
    classes = [_priority(low, 10), _priority(high, 1000)]
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": classes}))
    try:
        whole = Workers(1, resources={"memory": "3Gi", GPU: "4"})
        options = {**apart(pod_options), "priority" if of_dlrover else "priority_class": low}
        spec = training(engine_name, options, *FOREVER, workers=whole)
        async with driving(shared_folder / "run", spec) as driven:
            await driven.at_step(7)
            node = await node_of_last(driven, client, namespace)
            there = {"priorityClassName": high, "nodeSelector": {"kubernetes.io/hostname": node}}
            await client.create(PODS, namespace, somebody(pod_options["image"], gpus=4, **there))
            await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
            first, saved = driven.state.attempts[0], driven.state.checkpoint
            assert first.failure is not None
            assert (first.cause, first.failure.kind) == (Cause.PREEMPTION, FailureKind.PREEMPTED)
            assert saved is not None
            assert first.progress is not None
            assert saved.step == first.progress.step, "it lost steps although it had been warned"
            await driven.at_step(saved.step + 3)
            state = await finish(driven)
        assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 0)
    finally:
        kubectl("delete", "--wait=false", "priorityclass", low, high)


def _priority(name: str, value: int) -> dict[str, Any]:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value}


@on_every_engine
@pytest.mark.slow
async def test_suspended_while_it_trains_it_saves_and_goes_on_at_no_cost(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    """In an attempt that nobody has suspended. Let go at once, it may have lost its pods, which costs a restart."""
    engine = find_engine(engine_name)
    assert isinstance(engine, KubeEngine)
    place = (client, engine.kind.resource, namespace)
    async with driving(shared_folder / "run", training(engine_name, pod_options, *FOREVER)) as driven:
        await driven.at_step(7)
        await suspend(*place, str(driven.state.attempt.job))
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first, saved = driven.state.attempts[0], driven.state.checkpoint
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.PREEMPTION, FailureKind.PREEMPTED)
        assert saved is not None
        assert first.progress is not None
        assert saved.step == first.progress.step, "it lost steps although it had been warned"
        await driven.at_step(saved.step + 5)
        assert driven.state.restarts_used == 0
        for so in (True, False):
            await suspend(*place, str(driven.state.attempt.job), so=so)
        before = driven.step
        await driven.at_step(before + 20)
        state = await finish(driven)
    assert state.outcome == "stopped"
    assert len(state.attempts) <= 3
    assert state.restarts_used <= 1


@on_every_engine
@pytest.mark.slow
async def test_a_pod_that_is_throttled_is_told_as_a_straggler(
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    spec = training(engine_name, pod_options, "--epochs=4000", "--width=20000", "--lr=1e-9")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        faults.pod(namespace, await last_pod(driven, client, namespace), "throttle", 0.1)
        await driven.until(lambda: driven.run.status()["stragglers"] == [1], "the straggler")
        state = await finish(driven)
    assert (len(state.attempts), state.restarts_used) == (1, 0)
