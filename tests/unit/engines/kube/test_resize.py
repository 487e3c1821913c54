"""What has come of resources that were changed in place, as pods of Kubernetes 1.37 show it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from airflow_elastic.adapters.kube import KubeError, Missing, NoSuchKind
from airflow_elastic.adapters.kube.errors import Invalid
from airflow_elastic.adapters.kube.resources import PODS, Resource
from airflow_elastic.engines.api import Outcome, Resized
from airflow_elastic.engines.kube import resize as module
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION, JobKind
from airflow_elastic.engines.kube.resize import Workers, check, outcome, resize
from airflow_elastic.spec.errors import SpecError

WANTED = {"memory": "1Gi"}


def pod(name: str = "a", memory: str = "512Mi", index: int | None = 0, **status: Any) -> dict[str, Any]:
    amounts = {"requests": {"memory": memory}, "limits": {"memory": memory}}
    container = {"name": "trainer", "state": {"running": {}}, "resources": amounts}
    labels = {} if index is None else {INDEX_ANNOTATION: str(index)}
    status = {
        "phase": "Running",
        "containerStatuses": [{"name": "sidecar", "state": {}}, container],
        **status,
    }
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def condition(kind: str, reason: str | None = None, message: str | None = None) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", "reason": reason, "message": message}]}


@pytest.mark.parametrize(
    ("found", "what", "reason"),
    [
        (pod(memory="1Gi"), Outcome.DONE, None),
        (pod(memory="1073741824"), Outcome.DONE, None),
        (pod(), None, None),
        (pod(**condition("PodResizeInProgress")), None, None),
        (pod(**condition("PodResizeInProgress", "Error", "cannot")), Outcome.DEFERRED, "cannot"),
        (pod(**condition("PodResizePending", "Deferred", "no room")), Outcome.DEFERRED, "no room"),
        (pod(**condition("PodResizePending", "Infeasible", "never")), Outcome.REFUSED, "never"),
        (
            pod(containerStatuses=[]),
            Outcome.DEFERRED,
            "its container has not started yet, and starts with that",
        ),
    ],
    ids=["done", "in bytes", "at it", "in progress", "failed", "deferred", "infeasible", "not started"],
)
def test_the_containers_own_status_tells(
    found: dict[str, Any], what: Outcome | None, reason: str | None
) -> None:
    assert outcome(found, "trainer", WANTED) == (None if what is None else (what, reason))


def test_requests_alone_are_not_enough() -> None:
    found = pod()
    found["status"]["containerStatuses"][1]["resources"]["requests"]["memory"] = "1Gi"
    assert outcome(found, "trainer", WANTED) is None


@pytest.mark.parametrize(
    ("resources", "allowed"),
    [
        ({}, "at least one of cpu and memory"),
        ({"nvidia.com/gpu": "2"}, "cpu and memory: Kubernetes changes nothing else of a running pod"),
        ({"memory": "much"}, "a quantity"),
        ({"memory": "-1Gi"}, "a quantity"),
    ],
)
def test_what_no_running_pod_can_be_given_is_refused(resources: dict[str, str], allowed: str) -> None:
    with pytest.raises(SpecError, match=allowed):
        check(resources)


class Cluster:
    """A client that answers a change of each pod as it is told to."""

    server = "https://cluster"

    def __init__(self, pods: list[dict[str, Any]], **answers: Exception) -> None:
        self.pods, self.answers, self.sent = pods, answers, list[tuple[str, Any]]()

    async def list(self, resource: Resource, namespace: str, *, labels: str = "", fields: str = "") -> Any:
        assert resource == PODS
        name = fields.removeprefix("metadata.name=")
        return [one for one in self.pods if not name or one["metadata"]["name"] == name], "1"

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, part: str, *, by_name: bool
    ) -> None:
        assert (resource, part, by_name) == (PODS, "resize", True)
        self.sent.append((name, body))
        if name in self.answers:
            raise self.answers[name]
        (found,) = [one for one in self.pods if one["metadata"]["name"] == name]
        found["status"]["containerStatuses"][1]["resources"] = body["spec"]["containers"][0]["resources"]


async def resized(cluster: Cluster) -> tuple[Resized, ...]:
    return await resize(Workers(cast("Any", cluster), "ns", JobKind()), "j", WANTED)


async def test_every_worker_that_is_there_is_asked_and_told_of() -> None:
    left, over = pod("left"), pod("over", phase="Failed")
    left["metadata"]["deletionTimestamp"] = "now"
    errors = {
        "b": Invalid("node didn't have enough allocatable resources", 403),
        "c": Missing("gone", 404),
        "d": NoSuchKind("cannot", 404),
    }
    there = [pod("b", index=1), pod("a"), pod("c", index=2), pod("d", index=3), pod("other", index=None)]
    cluster = Cluster([*there, left, over], **errors)
    found = await resized(cluster)
    assert [(one.worker, one.outcome) for one in found] == [
        ("node-0", Outcome.DONE),
        *((f"node-{n}", Outcome.REFUSED) for n in (1, 2, 3)),
    ]
    assert [one.reason for one in found][:3] == [None, str(errors["b"]), "its pod has gone"]
    assert "Kubernetes 1.33 or newer" in str(found[3].reason)
    assert dict(cluster.sent)["a"] == {
        "spec": {"containers": [{"name": "trainer", "resources": {"requests": WANTED, "limits": WANTED}}]}
    }


async def test_a_cluster_out_of_reach_is_an_error() -> None:
    with pytest.raises(KubeError, match="away"):
        await resized(Cluster([pod()], a=KubeError("away")))


async def test_what_takes_long_is_told_as_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DONE_SECONDS", 0.0)
    (found,) = await resized(Cluster([pod()]))
    assert found.outcome is Outcome.DEFERRED
    assert "may use more than that" in str(found.reason)
