"""Gangs: what Volcano, an operator that uses it, and Kubernetes itself are told; and what is read of their answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.job import JobEngine, JobKind
from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.engines.kube.ownership import owned
from airflow_elastic.engines.kube.queues import native
from airflow_elastic.engines.kube.watch import pod_status
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Waiting
from tests.support.builders import spec


def run(engine: str, workers: Workers, launcher: str = "torchrun", **options: Any) -> RunSpec:
    return spec(engine=engine, launcher=launcher, workers=workers, engine_options={"image": "t:1", **options})


def body(run: RunSpec, count: int, kind: str) -> dict[str, Any]:
    """The object of this kind that is made for a job."""
    items = find_engine(run.engine).render(Job("s3://bucket/run", run, 1, count))["items"]
    (found,) = [item for item in items if item["kind"] == kind]
    assert isinstance(found, dict)
    return found


# -- Volcano, and operators that use it --------------------------------------------------------------------------------


def test_the_training_operator_is_told_of_the_gang_that_it_would_write_over() -> None:
    """With --gang-scheduler-name=volcano it says that all replicas are needed, unless the job says how many are."""
    workers = Workers(3, min=2, max=5, resources={"nvidia.com/gpu": "4"})
    options = {"queueing": "volcano", "queue": "team", "priority_class": "high"}
    queued = run("pytorchjob", workers, **options)
    gang = body(queued, 3, "PodGroup")["spec"]
    policy = body(queued, 3, "PyTorchJob")["spec"]["runPolicy"]["schedulingPolicy"]
    assert gang == {
        "minMember": 2,
        "queue": "team",
        "priorityClassName": "high",
        "minResources": {"nvidia.com/gpu": "8"},
    }
    assert policy == {
        "minAvailable": 2,
        "queue": "team",
        "priorityClass": "high",
        "minResources": {"nvidia.com/gpu": "8"},
    }
    alone = body(run("pytorchjob", workers), 3, "PyTorchJob")["spec"]["runPolicy"]
    assert "schedulingPolicy" not in alone


def test_a_policy_of_the_users_own_stays_where_it_says_nothing_of_the_gang() -> None:
    theirs = {"schedulingPolicy": {"scheduleTimeoutSeconds": 60}}
    told = body(run("pytorchjob", Workers(2), queueing="volcano", run_policy=theirs), 2, "PyTorchJob")
    assert told["spec"]["runPolicy"]["schedulingPolicy"] == {"scheduleTimeoutSeconds": 60, "minAvailable": 2}


@pytest.mark.parametrize("key", ["minAvailable", "queue", "priorityClass", "minResources"])
def test_what_the_gang_says_is_said_once(key: str) -> None:
    theirs = {"schedulingPolicy": {key: 1}}
    with pytest.raises(SpecError, match=rf"run_policy\.schedulingPolicy\.{key}.*nothing with volcano"):
        find_engine("pytorchjob").check(run("pytorchjob", Workers(2), queueing="volcano", run_policy=theirs))
    find_engine("pytorchjob").check(run("pytorchjob", Workers(2), run_policy=theirs))


def test_the_owner_of_a_gang_is_its_controller() -> None:
    """Operators that wait until a PodGroup is admitted hear only of those that they control."""
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "j", "uid": "u"}}
    (reference,) = owned({"metadata": {}}, owner, controls=True)["metadata"]["ownerReferences"]
    assert reference == {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "j",
        "uid": "u",
        "controller": True,
    }
    (plain,) = owned({"metadata": {}}, owner)["metadata"]["ownerReferences"]
    assert "controller" not in plain


def test_workers_that_wait_for_each_other_are_a_gang_of_all() -> None:
    """Of torchrun without our agents two of four would start, and hold their GPUs until the others come."""
    of_all = run("job", Workers(4, min=2), "torchrun-plain", queueing="volcano")
    assert body(of_all, 4, "PodGroup")["spec"] == {"minMember": 4}


# -- Kubernetes' own ---------------------------------------------------------------------------------------------------


def job_of(workers: Workers, count: int, launcher: str = "torchrun", **options: Any) -> dict[str, Any]:
    return body(run("job", workers, launcher, queueing="native", **options), count, "Job")


@pytest.mark.parametrize(
    ("workers", "count", "launcher", "least", "mode"),
    [
        (Workers(4, min=2, max=8), 4, "torchrun", 2, "single"),
        (Workers(4, min=2, max=8), 2, "torchrun", 2, "single"),
        (Workers(4), 4, "torchrun", 4, "all"),
        (Workers(4, min=2), 4, "torchrun-plain", 4, "all"),
    ],
)
def test_a_job_asks_for_a_gang_of_the_fewest_workers(
    workers: Workers, count: int, launcher: str, least: int, mode: str
) -> None:
    asked = job_of(workers, count, launcher)["spec"]["scheduling"]
    assert asked == {"schedulingPolicy": {"gang": {"minCount": least}}, "disruptionMode": {mode: {}}}


def test_one_place_and_what_preemption_takes_are_said_of_the_gang() -> None:
    made = job_of(Workers(2), 2, topology="topology.kubernetes.io/zone", disruption_mode="single")
    assert made["spec"]["scheduling"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/zone"}]},
        "disruptionMode": {"single": {}},
    }
    assert "affinity" not in made["spec"]["template"]["spec"], "or two would say the same"


def test_without_it_a_job_says_nothing_of_gangs() -> None:
    assert "scheduling" not in body(run("job", Workers(2)), 2, "Job")["spec"]


@pytest.mark.parametrize(
    ("engine", "options", "path"),
    [
        ("pytorchjob", {"queueing": "native"}, r"queueing.*kueue or volcano with pytorchjob"),
        ("trainjob", {"queueing": "native"}, r"queueing.*kueue or volcano with trainjob"),
        ("elasticjob", {"queueing": "native"}, r"queueing.*unset with elasticjob"),
        ("job", {"queueing": "native", "queue": "team"}, r"queue: .*wait in no queue"),
        ("job", {"disruption_mode": "all"}, r"disruption_mode.*without queueing: native"),
        ("job", {"queueing": "native", "disruption_mode": "some"}, r"disruption_mode.*all, single"),
    ],
)
def test_what_no_gang_of_kubernetes_can_be_is_refused(
    engine: str, options: dict[str, Any], path: str
) -> None:
    with pytest.raises(SpecError, match=rf"engine_options\.{path}"):
        find_engine(engine).check(run(engine, Workers(2), **options))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"schedulingConstraints": ..., "schedulingPolicy": ..., "disruptionMode": ...}, None),
        (None, r"dropped spec\.scheduling, .*GenericWorkload and WorkloadWithJob"),
        ({"schedulingPolicy": ..., "disruptionMode": ...}, r"schedulingConstraints, .*TopologyAwareWorkload"),
        ({"schedulingPolicy": ..., "schedulingConstraints": ...}, r"spec\.scheduling\.disruptionMode"),
        ({"schedulingPolicy": {}, "schedulingConstraints": ...}, r"spec\.scheduling\.schedulingPolicy\.gang"),
    ],
)
def test_what_the_api_server_has_dropped_is_said(made: dict[str, Any] | None, said: str | None) -> None:
    asked = job_of(Workers(2), 2, topology="zone")
    scheduling = made and {
        key: asked["spec"]["scheduling"][key] if value is ... else value for key, value in made.items()
    }
    answer = {"spec": {**asked["spec"], "uid": "added", "scheduling": scheduling}}
    told = native.dropped_gang(asked, answer)
    assert re.search(said, told or "") if said else told is None


def gang(count: int, least: int | None, **more: Any) -> dict[str, Any]:
    """A Job with a gang, as the API server has it."""
    policy = {"gang": {} if least is None else {"minCount": least}}
    spec = {
        "parallelism": count,
        "completions": count,
        "template": {"spec": {}},
        "scheduling": {"schedulingPolicy": policy},
    }
    return {"metadata": {"name": "a", "uid": "1"}, "spec": {**spec, **more}}


@given(st.integers(1, 9), st.none() | st.integers(1, 9), st.integers(1, 9))
def test_no_scale_step_leaves_a_gang_that_needs_more_than_there_are(
    count: int, least: int | None, workers: int
) -> None:
    least = None if least is None else min(least, count)
    patch = JobKind().scaled(gang(count, least), workers).body["spec"]
    assert (patch["parallelism"], patch["completions"]) == (workers, workers)
    told = patch.get("scheduling", {}).get("schedulingPolicy", {}).get("gang", {}).get("minCount")
    if least is None or least <= workers:
        assert told is None, "it is left as it is"
    else:
        assert told == workers


@pytest.mark.parametrize(
    ("owner", "may"),
    [
        (gang(3, 1), True),
        (gang(3, 2), False),  # an administrator's: one more worker is one more that it needs
        (gang(3, None), False),  # it follows the Job's size
        ({"metadata": {"name": "a", "uid": "1"}, "spec": {"completions": 3}}, True),
    ],
)
def test_a_lost_worker_is_replaced_in_no_gang_that_is_larger_than_ours(
    owner: dict[str, Any], may: bool
) -> None:
    job = Job("s3://b/r", run("job", Workers(3, min=1)), 1, 3, standby=True)
    slim = JobKind().slim(owner)
    assert JobEngine()._may_replace(job, KubeOptions(image="t:1"), slim) is may
    assert JobEngine()._may_replace(job, KubeOptions(image="t:1", queueing="native"), slim) is may


def pod(index: int, *conditions: tuple[str, str, str], group: str | None = "g") -> dict[str, Any]:
    """A pod that nobody has placed."""
    spec = {} if group is None else {"schedulingGroup": {"podGroupName": group}}
    told = [{"type": kind, "status": status, "message": text} for kind, status, text in conditions]
    return pod_status.slim(
        {
            "metadata": {
                "name": f"a-{index}",
                "uid": f"p{index}",
                "creationTimestamp": "2026-11-27T00:00:00Z",
                "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
            },
            "spec": spec,
            "status": {"phase": "Pending", "conditions": told},
        }
    )


def read_gang(owner: dict[str, Any], *pods: dict[str, Any], why: str | None = None) -> JobStatus:
    return read_job(JobKind(), JobKind().slim(owner), pods, {}, why)


@pytest.mark.parametrize(("least", "need"), [(2, "2 pods"), (None, "all pods")])
def test_a_pod_that_waits_for_its_gang_says_so(least: int | None, need: str) -> None:
    """It has no condition, and no event."""
    status = read_gang(gang(2, least), pod(0))
    first, second = status.workers
    assert (first.waiting, second.waiting) == (Waiting.QUEUED, Waiting.STARTING)
    assert first.reason == f"it waits until {need} of its gang are there"
    over = "FailedCreate: exceeded quota: q"
    first, second = read_gang(gang(2, least), pod(0), why=over).workers
    assert (first.reason, second.reason) == (
        f"it waits until {need} of its gang are there: {over}",
        over,
    )


def test_a_pod_whose_group_nobody_has_made_says_which() -> None:
    owner = gang(1, None, scheduling=None, template={"spec": {"schedulingGroup": {"podGroupName": "mine"}}})
    (worker,) = read_gang(owner, pod(0, group="mine")).workers
    assert worker.reason == "it waits for the pod group mine, which its template names"


def test_a_pod_of_a_group_that_is_no_gang_starts() -> None:
    """With the gate WorkloadWithJob each Job has a group."""
    (worker,) = read_gang(gang(1, None, scheduling=None), pod(0)).workers
    assert worker.waiting is Waiting.STARTING


def test_all_pods_of_a_gang_wait_for_room_in_the_words_of_the_one_that_was_tried() -> None:
    room = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    whole = (
        "pod group is unschedulable, 0/1 placements are available, first placement status: minCount (2) cannot be "
        "satisfied: 1 scheduled, 0 remaining"
    )
    status = read_gang(
        gang(2, 2), pod(0, ("PodScheduled", "False", whole)), pod(1, ("PodScheduled", "False", room))
    )
    assert {(one.waiting, one.reason) for one in status.workers} == {(Waiting.CAPACITY, room)}
    alone = read_gang(gang(1, 1), pod(0, ("PodScheduled", "False", whole)))
    assert alone.workers[0].reason == whole
