"""Manifests whose pods are a gang of Volcano's, as people have them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.spec.errors import SpecError
from tests.unit.engines.kube.manifests.test_manifests import Plain, elasticjob, pods_in, rendered, trainingjob

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
            pytorchjob(template(**{LEAST: "4"}), {"minAvailable": 2}),
            r"minAvailable: given 2; allowed: 4, as at spec\.pytorchReplicaSpecs.*group-min-member",
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
            pytorchjob(template(**{LEAST: "9" * 5000})),
            r"group-min-member: given '9*\.\.\.; allowed: an integer from 1 to 4",
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


def with_group(owner: Plain, spec: Plain, name: str = "mine", **metadata: Any) -> Plain:
    """A file with the job, and the PodGroup that it may name."""
    head = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
    group = {**head, "metadata": {"name": name, **metadata}, "spec": spec, "status": {"phase": "Running"}}
    return {"apiVersion": "v1", "kind": "List", "items": [group, owner]}


@pytest.mark.parametrize("key", [GROUP, "scheduling.volcano.sh/group-name"])
@pytest.mark.parametrize("make", [job, pytorchjob])
def test_a_pod_group_in_the_same_file_becomes_the_gang(
    key: str, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"minMember": 2, "queue": "team", "priorityClassName": "high"}
    given = with_group(make(template(**{key: "mine"})), {**said, "minResources": {"nvidia.com/gpu": 8}})
    assert gang_of(given) == {**said, "minResources": {"nvidia.com/gpu": "8"}}
    assert from_manifest(given).workers.min == 2
    assert not caplog.records, "there is nothing else in the file"


@pytest.mark.parametrize("amounts", [{"cpu": "3000m", "memory": "2Gi"}, {"cpu": 3, "memory": "2048Mi"}])
def test_what_a_gang_asks_for_may_be_written_otherwise(amounts: Plain) -> None:
    pod = template(**{GROUP: "mine"})
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    given = with_group(job(pod), {"minMember": 2, "minResources": amounts})
    assert gang_of(given)["minResources"] == {"cpu": "3000m", "memory": "2Gi"}


def test_amounts_of_a_container_that_are_not_alike_are_said_by_no_gang() -> None:
    pod = template(**{GROUP: "mine"})
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 2}, "requests": {"cpu": 1}}
    with pytest.raises(SpecError, match="what the fewest workers ask for, or leave it out"):
        from_manifest(with_group(job(pod), {"minMember": 2, "minResources": {"cpu": 2}}))
    assert gang_of(with_group(job(pod), {"minMember": 2}))["minMember"] == 2


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            with_group(job(template(**{GROUP: "mine"})), {"minMember": 5}),
            "PodGroup mine: spec.minMember: given 5; allowed: an integer from 1 to 4, the number of workers",
        ),
        (
            with_group(job(template(**{GROUP: "mine"})), {"minMember": "2"}),
            "PodGroup mine: spec.minMember: given '2'; allowed: an integer, without quotes",
        ),
        (
            with_group(job(template(**{GROUP: "mine", QUEUE: "a"})), {"queue": "b"}),
            "PodGroup mine: spec.queue: given 'b'; allowed: a, as at "
            "spec.template.metadata.annotations.scheduling.volcano.sh/queue-name",
        ),
        (
            with_group(job(template(**{GROUP: "mine"})), {"minTaskMember": {"worker": 2}}),
            "PodGroup mine: spec.minTaskMember: given {'worker': 2}; allowed: nothing: a run has no word for this "
            "field, so it would be lost",
        ),
        (
            with_group(job(template(**{GROUP: "mine"})), {}, labels={"team": "a"}),
            "PodGroup mine: metadata.labels: given {'team': 'a'}; allowed: nothing: say it of the job, whose own "
            "PodGroup has its labels and annotations",
        ),
        (
            with_group(job(template(**{GROUP: "mine"})), {}, name="other"),
            "spec.template.metadata.annotations.scheduling.k8s.io/group-name: given 'mine'; allowed: nothing: each "
            "attempt has its own PodGroup, with the fewest workers of the run. Or add the PodGroup mine to the same "
            "file, behind a line ---, and it is taken from there",
        ),
    ],
)
def test_what_cannot_be_kept_of_a_pod_group_is_refused_by_name(given: Plain, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_manifest(given)
    assert problem in [str(one) for one in caught.value.problems]


def test_a_pod_group_that_no_job_names_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    from_manifest(with_group(job(template()), {"minMember": 2}))
    assert [one.message for one in caplog.records] == [
        "no part of the run, so see to it that the cluster has it: PodGroup mine"
    ]


@pytest.mark.parametrize("make", [elasticjob, trainingjob])
def test_a_pod_group_that_a_kind_without_gangs_names_is_told_of(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    owner = make()
    for pod in pods_in(owner):
        pod.setdefault("metadata", {}).setdefault("annotations", {})[GROUP] = "mine"
    from_manifest(with_group(owner, {"minMember": 2}))
    assert [one.message for one in caplog.records] == [
        "no part of the run, so see to it that the cluster has it: PodGroup mine"
    ]
