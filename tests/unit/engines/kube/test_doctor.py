"""What `doctor` tells of the gangs that a cluster can have."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, cast

import pytest

from airflow_elastic.adapters.kube import Client, Forbidden, Invalid, Resource
from airflow_elastic.adapters.kube.resources import EVENTS
from airflow_elastic.engines.api import Finding
from airflow_elastic.engines.kube.queues.gang_findings import findings
from airflow_elastic.engines.kube.queues.volcano import PODGROUPS


class Cluster:
    """A client of a cluster: what it drops of a gang, and which Volcano it has.

    Attributes:
        drops: of a Job's `spec.scheduling`; all of it, where the name is empty.
        scheduler: the image of Volcano's scheduler; None without Volcano.
        forbids: kinds of which this connection may list and make none.
    """

    server = "https://cluster"

    def __init__(
        self, *drops: str, scheduler: str | None = None, forbids: tuple[str, ...] = (), old: bool = False
    ) -> None:
        self.drops, self.scheduler, self.forbids, self.old = drops, scheduler, forbids, old

    async def allowed(self, verb: str, resource: Resource, namespace: str) -> bool:
        return resource.plural not in self.forbids

    async def knows(self, resource: Resource) -> bool:
        return resource != PODGROUPS or self.scheduler is not None

    async def create(
        self, resource: Resource, namespace: str, body: Mapping[str, Any], *, dry_run: bool
    ) -> dict[str, Any]:
        assert dry_run, "nothing is to be made"
        if self.old:
            raise Invalid('strict decoding error: unknown field "spec.scheduling"')
        made = copy.deepcopy(dict(body))
        for name in self.drops:
            if name:
                del made["spec"]["scheduling"][name]
            else:
                del made["spec"]["scheduling"]
        return made

    async def list(self, resource: Resource, namespace: str) -> tuple[list[dict[str, Any]], str]:
        if resource.plural in self.forbids:
            raise Forbidden(f"may not list {resource.plural}")
        assert (resource.plural, namespace) == ("deployments", "volcano-system")
        containers = [{"name": "proxy", "image": "proxy:2"}, {"name": "main", "image": self.scheduler}]
        return [{"spec": {"template": {"spec": {"containers": containers}}}}], "1"


async def told(cluster: Cluster) -> dict[str, Finding]:
    return {one.subject: one for one in await findings(cast("Client", cluster), "ml")}


@pytest.mark.parametrize(
    ("cluster", "ok", "said"),
    [
        (Cluster(), True, "in one topology, too"),
        (Cluster(""), False, "turn on the feature gates GenericWorkload and WorkloadWithJob"),
        (Cluster("schedulingConstraints"), False, "gates TopologyAwareWorkloadScheduling"),
        (Cluster(old=True), False, "needs Kubernetes 1.37"),
    ],
)
async def test_whether_jobs_can_be_gangs_is_tried(cluster: Cluster, ok: bool, said: str) -> None:
    found = await told(cluster)
    assert found.keys() == {"job: queueing native"}
    one = found["job: queueing native"]
    assert one.ok is ok
    assert said in one.text
    assert one.part, "the engine can be used without"


async def test_without_the_right_to_make_jobs_nothing_is_tried() -> None:
    assert await told(Cluster(forbids=("jobs",))) == {}


@pytest.mark.parametrize(
    ("image", "forbids", "ok", "said"),
    [
        ("reg.example.com:5000/volcanosh/vc-scheduler:v1.15.1", (), True, "Volcano 1.15.1 is installed"),
        ("volcanosh/vc-scheduler:v1.13.0-alpha.1@sha256:0", (EVENTS.plural,), True, "Volcano 1.13.0-alpha.1"),
        (
            "vc-scheduler:1.12.2",
            (),
            True,
            "Volcano 1.12.2 reports preemptions only in Events, which may be",
        ),
        ("vc-scheduler:v1.9.0", (EVENTS.plural,), False, "Volcano 1.9.0 reports .* install Volcano 1.13"),
        ("vc-scheduler:latest", (), True, "of Volcano is unknown; up to 1.12 it reports"),
        (
            "vc-scheduler:v1.15.1",
            ("deployments", EVENTS.plural),
            False,
            "is unknown.*grant `list events`",
        ),
    ],
)
async def test_which_volcano_tells_of_preemptions(
    image: str, forbids: tuple[str, ...], ok: bool, said: str
) -> None:
    one = (await told(Cluster(scheduler=image, forbids=forbids)))["job: queueing volcano"]
    assert one.ok is ok
    assert one.part
    assert re.search(said, one.text), one.text
