"""The capacity of a cluster behind a real server: one read for all runs, and what is said if rights are missing."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from airflow_elastic.adapters.kube import Access
from airflow_elastic.adapters.kube.hub import hub
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.job import JobEngine
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from tests.support.kubernetes.kube_server import kubeconfig, listening, status
from tests.unit.engines.kube.test_claims import node, pod

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"


class Cluster:
    """What its lists hold, by path, what is refused, and how often each was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: Counter[str] = Counter()
        self.first = asyncio.Event()
        self.refused: set[str] = set()
        self.fails = False
        self.items: dict[str, list[Any]] = {
            NODES: [node("a"), node("b")],
            PODS: [pod("other", 6, "a")],
            QUOTAS: [],
        }

    @property
    def engine(self) -> JobEngine:
        return JobEngine(access=Access(content=json.dumps(kubeconfig(self.url))))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] += 1
        self.first.set()
        if self.fails:
            return status(500, "InternalError", "etcd is away")
        if request.path in self.refused:
            what = request.path.rpartition("/")[2]
            return status(403, "Forbidden", f'{what} is forbidden: User "x" cannot list resource "{what}"')
        if request.path not in self.items:
            return status(404, "NotFound", "no such path")
        return web.json_response(
            {"items": self.items[request.path], "metadata": {"resourceVersion": "1"}},
        )

    async def end(self) -> None:
        """Nothing is under way."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    found = Cluster()
    async with listening(found.answer, found.end) as found.url:
        yield found


def job(number: int = 0, interval: float = 15.0, **options: Any) -> Job:
    policy = ScalingPolicy(capacity=CapacityRule(), interval_seconds=interval)
    spec = RunSpec(
        command=("train.py",),
        engine="job",
        workers=Workers(1, min=1, max=8, resources={"cpu": "2"}),
        engine_options={"image": "any", **options},
        scaling_policy=policy,
    )
    return Job(f"s3://bucket/run{number}", spec, 1, 1)


async def test_fifty_runs_read_once_an_interval(cluster: Cluster) -> None:
    engine = cluster.engine
    found = await asyncio.gather(*(engine.capacity(job(i)) for i in range(50)))
    found += [await engine.capacity(job(i)) for i in range(50)]
    assert {one.free for one in found} == {5}
    assert len({one.at for one in found}) == 1
    assert cluster.asked == {NODES: 1, PODS: 1, QUOTAS: 1}


async def test_what_is_older_than_an_interval_is_read_again(cluster: Cluster) -> None:
    engine, often = cluster.engine, job(interval=1e-9)
    async with hub(Access(content=json.dumps(kubeconfig(cluster.url)))):
        assert (await engine.capacity(often)).free == 5
        cluster.items[PODS] = []
        assert (await engine.capacity(often)).free == 8
        assert (await engine.capacity(job())).free == 8, "it is new enough for a run that looks seldom"
    assert cluster.asked[NODES] == 2


async def test_one_that_gives_up_takes_the_answer_from_nobody(cluster: Cluster) -> None:
    engine = cluster.engine
    first = asyncio.create_task(engine.capacity(job()))
    second = asyncio.create_task(engine.capacity(job()))
    await cluster.first.wait()
    first.cancel()
    assert (await second).free == 5
    assert cluster.asked[NODES] == 1


@pytest.mark.parametrize(
    ("path", "right"), [(NODES, "`list nodes`"), (PODS, "`list pods`"), (QUOTAS, "`list resourcequotas`")]
)
async def test_a_missing_right_is_named_and_stops_nothing(cluster: Cluster, path: str, right: str) -> None:
    cluster.refused.add(path)
    for _ in range(2):
        found = await cluster.engine.capacity(job())
        assert found.free is None
        assert right in found.text
        assert found.at > 1e9
    assert cluster.asked[path] == 1


async def test_a_server_in_trouble_is_an_error_and_is_asked_again(cluster: Cluster) -> None:
    cluster.fails = True
    engine, often = cluster.engine, job(interval=1e-9)
    with pytest.raises(EngineError, match="etcd is away"):
        await engine.capacity(often)
    cluster.fails = False
    assert (await engine.capacity(often)).free == 5


async def test_pools_of_a_platform(cluster: Cluster) -> None:
    cluster.items[NODES][0]["metadata"]["labels"]["cloud.google.com/gke-nodepool"] = "spot"
    assert (await cluster.engine.capacity(job())).pools == {"spot": 1, "nodes": 4}
    assert "zone" in (await cluster.engine.capacity(job(topology="zone"))).text


async def test_the_priority_of_a_run_is_that_of_its_pods_also_while_they_wait(cluster: Cluster) -> None:
    ours = job(interval=1e-9)
    labels = {"labels": {"airflow-elastic/job": ours.name}, "namespace": "default"}
    for where in (None, "b"):
        cluster.items[PODS] = [
            pod("w0", 4, where, priority=7, metadata=labels),
            pod("urgent", 1, "a", priority=9),
        ]
        assert (await cluster.engine.capacity(ours)).priority == 7
    assert (await cluster.engine.capacity(job(1))).priority == 0


async def test_own_workers_are_taken_and_their_pods_show_what_the_cluster_added(cluster: Cluster) -> None:
    ours = job()
    one = pod("w0", 4, "b", metadata={"labels": {"airflow-elastic/job": ours.name}, "namespace": "default"})
    one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "0"
    cluster.items[PODS] += [one, pod("urgent", 7, priority=5)]
    found = await cluster.engine.capacity(ours)
    assert found.free == 1, "a worker takes 4 with the sidecar that the cluster has added"
    assert [(claim.name, claim.workers) for claim in found.claims] == [("pod ml/urgent", 1)]
