"""On a cluster: from a pod's failure to the next attempt, and from a deleted pod to the first new optimizer step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.engines import find_engine
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.bench.support.kube_recovery import (
    LOSSES_OF_A_RUN,
    OURS,
    STAGES,
    Loss,
    creations,
    kills,
    kind_of,
    plain_jobs,
    rests,
)
from tests.bench.support.kube_training import Training
from tests.support.kubernetes import kube
from tests.support.runs.faults import Faults

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
ENGINES = ("job", "pytorchjob", "trainjob")

pytestmark = pytest.mark.skipif(
    not os.environ.get("KUBECONFIG") or not os.environ.get(kube.CLUSTER),
    reason=f"set KUBECONFIG, and {kube.CLUSTER} to the program that can break that cluster",
)


def ways(losses: list[Loss]) -> list[tuple[str, list[Loss]]]:
    """Those after which the job went on, and those after which there was another one."""
    both = [(text, [loss for loss in losses if ("gone" in loss.moments) is gone]) for text, gone in _WAYS]
    return [(text, some) for text, some in both if some]


_WAYS = (("another pod in the same job", False), ("a new job", True))


def table(losses: list[Loss]) -> None:
    stages = [loss.stages() for loss in losses]
    for name, _ in STAGES:
        if name in stages[0]:
            print(f"    {name:32}{spread([each[name] for each in stages], 'ms', 1000)}", flush=True)


@pytest.mark.bench
@pytest.mark.timeout(7200)
async def test_kills(
    shared_folder: Path, pod_options: dict[str, Any], access: Access, client: Client, faults: Faults
) -> None:
    times = count("KILLS", 10)
    heading(f"2 pods, all of one killed, {times} times on each engine: from its failure to the next attempt")
    floor = await creations(access, client, pod_options, times)
    print(f"  floor: one object is created      {spread(floor, 'ms', 1000)}")
    plain = await plain_jobs(access, client, pod_options, faults, count("PLAIN", 5))
    print(f"  baseline: a Job replaces its pod  {spread(plain)}", flush=True)
    for engine in ENGINES:
        if not await client.knows(kind_of(engine)):
            print(f"  {engine}: not in this cluster")
            continue
        losses = await kills(engine, shared_folder, pod_options, access, faults, times)
        found = [loss.after("made") for loss in losses]
        print(f"  {engine:34}{spread(found, 'ms', 1000)}")
        for what, some in ways(losses):
            print(f"    {what}: {spread([loss.after('made') for loss in some], 'ms', 1000)}")
            table(some)
        ratios = [median(found) / median(other) for other in (floor, plain)]
        print(f"    over the floor {ratios[0]:.1f}, over the baseline {ratios[1]:.3f}")
        verdict(f"median on {engine}", median(found), 0.3, " s")
        if engine == "trainjob":
            theirs = await rests(shared_folder, pod_options, access, times)
            print(f"    Trainer, JobSet and the Job's controller rest {spread(theirs, 'ms', 1000)}")
            verdict(f"median on {engine}, less that", median(found) - median(theirs), 0.3, " s")


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine_name", ["elasticjob"])
async def test_kills_of_elasticjobs(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], access: Access, faults: Faults
) -> None:
    """Their job master is DLRover's own; who starts it stands in for its operator."""
    times = count("KILLS", 10)
    heading(
        f"2 pods, all of one killed, {times} times on engine {engine_name}: from its failure to the next attempt"
    )
    losses = await kills(engine_name, shared_folder, pod_options, access, faults, times)
    found = [loss.after("made") for loss in losses]
    print(f"  {engine_name:34}{spread(found, 'ms', 1000)}")
    table(losses)
    verdict(f"median on {engine_name}", median(found), 0.3, " s")


@pytest.mark.bench
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ENGINES)
async def test_deleted_pods(
    engine: str, shared_folder: Path, pod_options: dict[str, Any], access: Access, client: Client
) -> None:
    times = min(count("LOSSES", 5), LOSSES_OF_A_RUN)
    heading(f"2 pods that train on engine {engine}, one deleted without grace, {times} times")
    run = Training(engine, shared_folder, pod_options, access)
    losses = await run.losses(client, times)
    floors = await run.floors(client, times)
    torchruns = await run.floors(client, times, *TORCHRUN)
    whole = [loss.after("first step") for loss in losses]
    print(f"  until the first new step          {spread(whole)}")
    for text, other in (
        ("floor: a Job starts, imports, loads", floors),
        ("baseline: the same by way of torchrun", torchruns),
    ):
        print(f"  {text:40}{spread(other)}; over it {median(whole) / median(other):.2f}")
    print("  where the time goes")
    table(losses)
    if find_engine(engine).capabilities.standby:
        ready = Training(engine, shared_folder / "standby", pod_options, access, standby=1)
        replaced = await ready.losses(client, times)
        steps = [loss.after("first step") for loss in replaced]
        print(f"  with a standby worker             {spread(steps)}")
        table(replaced)
        verdict("median / median of the floor", median(steps) / median(floors), 0.25)
    shares = [
        100 * sum(loss.stages().get(name, 0.0) for name in OURS) / total
        for loss, total in zip(losses, whole, strict=True)
    ]
    print(f"  ours: {', '.join(OURS)}: {spread(shares, '%')}")
    verdict("our part of it, median", median(shares), 10.0, " %")


async def test_one_kill_is_measured(
    shared_folder: Path, pod_options: dict[str, Any], access: Access, client: Client, faults: Faults
) -> None:
    (killed,) = await kills("job", shared_folder, pod_options, access, faults, 1)
    # The controller may hear of it a moment before the thread that measures.
    assert killed.after("known") < killed.after("made")
    assert await creations(access, client, pod_options, 1) > [0.0]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_one_deleted_pod_is_measured(
    shared_folder: Path, pod_options: dict[str, Any], access: Access, client: Client
) -> None:
    run = Training("job", shared_folder / "training", pod_options, access)
    (lost,) = await run.losses(client, 1)
    assert list(lost.stages()) == [name for name, moment in STAGES if moment != "gone"], (
        "it goes on in its job"
    )
    (floor,) = await run.floors(client, 1, *TORCHRUN)
    assert floor > 0
