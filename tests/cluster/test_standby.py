"""Standby workers on a real cluster: pods that have started, and do not train until a worker is lost."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import JOBS, PODS
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import WorkerPhase
from tests.cluster.faults.test_node_faults import apart
from tests.cluster.kinds.test_training import SOURCES, kept_by_buddies, world
from tests.cluster.test_policies import check_each_sample_once
from tests.support.driving import Driven, driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import QUOTAS, pods_of
from tests.support.machine.patience import until_async
from tests.support.runs.faults import Faults
from tests.support.runs.losses import SLACK, goes_on_in_its_job, steps_done


def with_standby(options: dict[str, Any], **changes: Any) -> RunSpec:
    """A training on 2 pods, with another one that stands by; states are in memory only."""
    spec = kept_by_buddies("job", options)
    return replace(spec, workers=replace(spec.workers, standby=1, **changes))


def traced(spec: RunSpec, folder: Path) -> RunSpec:
    """The same; its ranks write the samples of each step into this folder."""
    folder.mkdir()
    return replace(spec, command=(*spec.command, f"--samples={folder}"))


def standby(driven: Driven) -> dict[str, str]:
    """The phases of standby workers, as the status document has them."""
    placement: Any = driven.run.status()["placement"]
    return {str(one["worker"]): str(one["phase"]) for one in placement if one["standby"]}


async def ready(driven: Driven, name: str) -> None:
    await driven.until(lambda: standby(driven).get(name) == str(WorkerPhase.RUNNING), f"{name} to stand by")


async def trained_by(driven: Driven, *workers: int) -> None:
    """Wait until the ranks of these workers report."""

    def reported() -> bool:
        progress = driven.run.progress(driven.state)
        names = {rank.worker for rank in progress.ranks} if progress else set()
        return names == {f"node-{index}" for index in workers}

    await driven.until(reported, f"ranks of workers {workers}")


async def ended(driven: Driven) -> tuple[str | None, int, int]:
    driven.run.ask_stop(by="test")
    state = await driven.end()
    return state.outcome, len(state.attempts), state.restarts_used


async def indexes(driven: Driven, client: Client, namespace: str) -> list[str]:
    """The numbers of the workers that have pods which nobody has deleted."""
    pods = await pods_of(driven, client, namespace)
    there = [pod["metadata"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return [metadata["labels"][INDEX_ANNOTATION] for metadata in there]


def check_sources(folder: Path, place: int) -> None:
    """The rank in the place of the lost one has read its state from the memory of another worker."""
    log = (folder / "run" / "logs" / "attempt-0002" / f"g02-rank-{place}.log").read_text()
    found = re.search(SOURCES, log)
    assert found is not None, log
    others, storage = found.groups()
    assert (others != "0 B", storage) == (True, "0 B"), found.group()


@pytest.mark.siblings("a worker of a cluster's training is lost")
@pytest.mark.parametrize("how", ["--verbose", "--stay"], ids=["ranks-start-again", "ranks-stay"])
async def test_a_standby_pod_takes_the_place_of_a_lost_one(
    how: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """Then another one follows, which is lost and followed in turn; and a scale step takes that one."""
    spec = with_standby(pod_options)
    async with driving(shared_folder / "run", replace(spec, command=(*spec.command, how))) as driven:
        await driven.at_step(20)
        await ready(driven, "node-2")
        pods = await pods_of(driven, client, namespace)
        lost = time.time()
        faults.pod(namespace, pods[1]["metadata"]["name"], "signal")
        await goes_on_in_its_job(driven)
        print(f"from the kill to the first new step: {time.time() - lost:.2f} s")  # noqa: T201
        await trained_by(driven, 0, 2)
        check_sources(shared_folder, 1)
        await ready(driven, "node-3")
        (pod,) = [
            pod
            for pod in await pods_of(driven, client, namespace)
            if pod["metadata"]["labels"][INDEX_ANNOTATION] == "3"
        ]
        await client.delete(PODS, namespace, pod["metadata"]["name"], grace_seconds=0)
        await ready(driven, "node-4")
        driven.run.ask_scale(3, by="test")
        await driven.until(lambda: world(driven) == 3, "3 ranks")
        await trained_by(driven, 0, 2, 4)
        driven.run.ask_scale(1, by="test")
        await driven.until(lambda: world(driven) == 1, "1 rank")
        assert await ended(driven) == ("stopped", 2, 1)


@pytest.mark.siblings("a worker of a cluster's training is lost")
@pytest.mark.parametrize("how", ["without-grace", "with-grace", "evicted"])
async def test_a_standby_pod_takes_the_place_of_one_that_is_deleted_or_evicted(
    how: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    kubectl: kube.Kubectl,
) -> None:
    """With grace all ranks save the step that they are at, and none is lost. Another standby pod follows.

    An eviction, as when a node is drained, costs no restart.
    """
    seen, has_grace = shared_folder / "samples", how != "without-grace"
    async with driving(shared_folder / "run", traced(with_standby(pod_options), seen)) as driven:
        await driven.at_step(20)
        await ready(driven, "node-2")
        pod = (await pods_of(driven, client, namespace))[1]["metadata"]["name"]
        assert driven.state.checkpoint is None
        lost = time.time()
        if how == "evicted":
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
            kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        else:
            await client.delete(PODS, namespace, pod, grace_seconds=None if has_grace else 0)
        from_step = await goes_on_in_its_job(driven)
        print(f"{how}: {time.time() - lost:.2f} s to the first new step")  # noqa: T201
        done = steps_done(seen, 1)
        assert done - (0 if has_grace else SLACK) <= from_step <= done
        await trained_by(driven, 0, 2)
        if not has_grace:
            check_sources(shared_folder, 1)
        await ready(driven, "node-3")
        assert await indexes(driven, client, namespace) == ["0", "2", "3"]
        await driven.at_step(driven.step + 5)
        first = driven.state.attempts[0]
        assert first.failure is not None
        kind, cost = (FailureKind.PREEMPTED, 0) if how == "evicted" else (FailureKind.WORKER_LOST, 1)
        assert (first.failure.kind, first.failure.worker) == (kind, "node-1")
        assert await ended(driven) == ("stopped", 2, cost)
        newest = driven.state.checkpoint
    assert newest is not None
    assert newest.step > done
    check_each_sample_once(seen, newest.step // 10 * 10)


@pytest.mark.siblings("a worker of a cluster's training is lost")
async def test_without_room_for_a_standby_pod_training_goes_on(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client, faults: Faults
) -> None:
    quota = {"metadata": {"name": "two"}, "spec": {"hard": {"pods": "2"}}}
    await client.create(QUOTAS, namespace, quota)
    async with driving(shared_folder / "run", with_standby(pod_options)) as driven:
        await driven.at_step(20)
        await driven.until(lambda: standby(driven) == {"node-2": "pending"}, "a standby worker without room")
        before = driven.step
        await driven.at_step(before + 20)
        assert (driven.state.label, len(driven.state.attempts)) == ("running", 1)
        pods = await pods_of(driven, client, namespace)
        faults.pod(namespace, pods[1]["metadata"]["name"], "signal")
        await goes_on_in_its_job(driven)
        await trained_by(driven, 0, 2)
        assert await ended(driven) == ("stopped", 2, 1)


async def test_a_run_that_succeeds_has_a_complete_job(
    shared_folder: Path, pod_options: dict[str, Any], client: Client, namespace: str
) -> None:
    """A pod that has stood by to the end has done what it should."""
    spec = with_standby(pod_options)
    short = replace(spec, command=(spec.command[0], "--epochs=12", "--step-seconds=0.05"))
    async with driving(shared_folder / "run", short) as driven:
        await ready(driven, "node-2")
        job = driven.state.attempt.job
        state = await driven.end()
        assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason

        async def complete() -> bool:
            status = (await client.get(JOBS, namespace, str(job))).get("status", {})
            return any(
                one["type"] == "Complete" and one["status"] == "True" for one in status.get("conditions", ())
            )

        await until_async(complete, "the Job to be complete")


@pytest.mark.slow
@pytest.mark.parametrize("fault", [("partition", "all"), ("power-off", None)], ids=str)
async def test_a_standby_pod_takes_the_place_of_one_whose_node_is_lost(
    fault: tuple[str, str | None],
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Any,
) -> None:
    seen = shared_folder / "samples"
    spec = traced(with_standby(apart(pod_options)), seen)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(20)
        await ready(driven, "node-2")
        pods = await pods_of(driven, client, namespace)
        nodes = [pod["spec"]["nodeName"] for pod in pods]
        place = next((i for i in (1, 0) if nodes.count(nodes[i]) == 1), 1)
        assert driven.state.checkpoint is None
        lost = time.time()
        faults.node(nodes[place], *fault)
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        noticed = time.time()
        from_step = await goes_on_in_its_job(driven)
        print(f"noticed after {noticed - lost:.1f} s, first new step {time.time() - noticed:.1f} s later")  # noqa: T201
        done = steps_done(seen, 1)
        assert done - SLACK <= from_step <= done
        await trained_by(driven, 1 - place, 2)
        check_sources(shared_folder, place)
        faults.heal()
        await driven.at_step(driven.step + 5)
        assert await ended(driven) == ("stopped", 2, 1)
        newest = driven.state.checkpoint
    assert newest is not None
    assert newest.step > done
    check_each_sample_once(seen, newest.step // 10 * 10)
