"""Manifests whose pods are a gang of Volcano's, as people have them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.spec.errors import SpecError
from tests.unit.test_kube_manifests import Plain, rendered

QUEUE = "scheduling.volcano.sh/queue-name"
LEAST = "scheduling.volcano.sh/group-min-member"
GROUP = "scheduling.k8s.io/group-name"


def template(*command: str, scheduler: str | None = "volcano", **annotations: str) -> Plain:
    container = {
        "name": "pytorch",
        "image": "trainer:1",
        "command": [*(command or ("torchrun", "train.py"))],
        "resources": {"limits": {"nvidia.com/gpu": 4}},
    }
    spec = {"containers": [container], **({"schedulerName": scheduler} if scheduler else {})}
    return {"metadata": {"annotations": annotations}, "spec": spec}


def pytorchjob(
    pod: Plain, policy: Plain | None = None, elastic: Plain | None = None, **annotations: str
) -> Plain:
    spec: Plain = {
        "pytorchReplicaSpecs": {"Worker": {"replicas": 4, "restartPolicy": "OnFailure", "template": pod}}
    }
    if policy is not None:
        spec["runPolicy"] = {"schedulingPolicy": policy}
    if elastic is not None:
        spec["elasticPolicy"] = elastic
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}
    return {**head, "metadata": {"name": "resnet", "annotations": annotations}, "spec": spec}


def job(pod: Plain, **annotations: str) -> Plain:
    spec = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "template": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "resnet", "annotations": annotations},
        "spec": spec,
    }


def gang_of(manifest: Plain) -> Plain:
    """The PodGroup that is made, as the pods belong to it."""
    group, *others = rendered(from_manifest(manifest))
    assert group["kind"] == "PodGroup"
    assert GROUP in str(others)
    spec: Plain = group["spec"]
    return spec


FOUR = {"nvidia.com/gpu": "16"}


@pytest.mark.parametrize(
    "given",
    [
        pytorchjob(template(), **{QUEUE: "team"}),
        pytorchjob(template(**{QUEUE: "team"})),
        pytorchjob(template(**{QUEUE: "team"}), **{QUEUE: "team"}),
        pytorchjob(template(), {"queue": "team"}),
        pytorchjob(template(), {"queue": "team", "minAvailable": 4, "minResources": FOUR}, **{QUEUE: "team"}),
        pytorchjob(template(scheduler=None), **{QUEUE: "team"}),
        job(template(**{QUEUE: "team"})),
        job(template(scheduler=None), **{QUEUE: "team"}),
    ],
)
def test_a_queue_of_volcano_becomes_one_of_the_run(given: Plain) -> None:
    spec = from_manifest(given)
    options = spec.engine_options
    assert (options["queueing"], options["queue"]) == ("volcano", "team")
    assert "scheduler" not in options
    assert QUEUE not in str(options), "the gang says it"
    assert gang_of(given) == {"minMember": 4, "queue": "team", "minResources": FOUR}


@pytest.mark.parametrize(
    "given",
    [
        pytorchjob(template(), {"minAvailable": 2}),
        pytorchjob(template(**{LEAST: "2"})),
        pytorchjob(template(), {"minAvailable": 2}, {"minReplicas": 2, "maxReplicas": 8}),
        pytorchjob(template(), None, {"minReplicas": 2, "maxReplicas": 8}),
        job(template(**{LEAST: "2"})),
    ],
)
def test_the_fewest_workers_are_its_gang(given: Plain) -> None:
    assert from_manifest(given).workers.at_least == 2
    assert gang_of(given) == {"minMember": 2, "minResources": {"nvidia.com/gpu": "8"}}


def test_what_else_is_said_of_it_is_kept() -> None:
    policy = {"priorityClass": "high", "scheduleTimeoutSeconds": 60}
    given = pytorchjob(template(scheduler="volcano-2", **{QUEUE: "team", "note": "mine"}), policy)
    spec = from_manifest(given)
    assert (spec.engine_options["scheduler"], spec.engine_options["priority_class"]) == ("volcano-2", "high")
    group, body = rendered(spec)
    assert group["spec"]["priorityClassName"] == "high"
    told = body["spec"]["runPolicy"]["schedulingPolicy"]
    assert (told["scheduleTimeoutSeconds"], told["minAvailable"]) == (60, 4)
    pod = body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert pod["metadata"]["annotations"]["note"] == "mine"


def test_a_policy_for_another_gang_scheduler_stays_what_it_is() -> None:
    spec = from_manifest(pytorchjob(template(scheduler=None), {"minAvailable": 2}))
    assert "queueing" not in spec.engine_options
    assert spec.engine_options["run_policy"] == {"schedulingPolicy": {"minAvailable": 2}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            pytorchjob(template(**{QUEUE: "a"}), **{QUEUE: "b"}),
            r"template\.metadata\.annotations\.scheduling\.volcano\.sh/queue-name.*'a'.*b, as at metadata\.annotations",
        ),
        (
            pytorchjob(template(), {"minAvailable": 3}, {"minReplicas": 2, "maxReplicas": 8}),
            r"spec\.runPolicy\.schedulingPolicy\.minAvailable: given 3; allowed: 2, the fewest workers",
        ),
        (
            pytorchjob(template(), {"minAvailable": 9}),
            r"minAvailable: given 9; allowed: an integer from 1 to 4",
        ),
        (
            pytorchjob(template(**{LEAST: "some"})),
            r"group-min-member: given 'some'; allowed: an integer from 1",
        ),
        (
            pytorchjob(template(**{GROUP: "mine"})),
            r"annotations\.scheduling\.k8s\.io/group-name: given 'mine'; allowed: nothing: each attempt has",
        ),
        (
            pytorchjob(template(), {"minResources": {"nvidia.com/gpu": 1}}),
            r"minResources: .*what the fewest workers ask for",
        ),
    ],
)
def test_what_a_gang_of_ours_cannot_be_is_refused(given: Plain, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        from_manifest(given)


def test_a_queue_is_kueues_or_volcanos() -> None:
    given: Any = pytorchjob(template(), **{QUEUE: "team"})
    given["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "other"}
    with pytest.raises(
        SpecError, match=r"queue-name: given 'other'; allowed: nothing beside a gang of Volcano's"
    ):
        from_manifest(given)
