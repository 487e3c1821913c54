"""PyTorchJobs, rendered and read purely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.engines.api import MAX_JOB_NAME, Job
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.pytorchjob import PyTorchJobEngine, PyTorchJobKind, PyTorchJobOptions
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.watch import pod_status as read
from airflow_elastic.spec.errors import EngineError, SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from airflow_elastic.spec.status import Asked, JobStatus, Waiting, WorkerPhase
from tests.support.builders import spec

KIND = PyTorchJobKind()
URI = "s3://bucket/run"


def job(workers: int = 2, **options: Any) -> Job:
    run = spec(
        name="digits", workers=Workers(3, min=2, max=5), engine_options={"image": "trainer:1", **options}
    )
    return Job(URI, run, 1, workers)


def rendered(workers: int = 2, **options: Any) -> dict[str, Any]:
    (body,) = PyTorchJobEngine().render(job(workers, **options))["items"]
    return dict(body)


def template(body: dict[str, Any], replica: str = "Worker") -> dict[str, Any]:
    return dict(body["spec"]["pytorchReplicaSpecs"][replica]["template"])


def env(body: dict[str, Any], replica: str = "Worker") -> dict[str, Any]:
    (container,) = template(body, replica)["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def owner(
    workers: int = 2, *conditions: tuple[str, str], changes: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    body = rendered(workers, **options)
    body["metadata"]["uid"] = "u"
    body["spec"].update(changes or {})
    body["status"] = {
        "conditions": [
            {"type": kind, "status": status, "message": f"is {kind}"} for kind, status in conditions
        ]
    }
    return KIND.slim(body)


def pod(
    index: int, replica: str = "worker", before: int = 0, uid: str = "u", **status: Any
) -> dict[str, Any]:
    labels = {
        "training.kubeflow.org/replica-type": replica,
        "training.kubeflow.org/replica-index": str(index),
    }
    if before:
        labels["airflow-elastic/workers-before"] = str(before)
    container = {"name": "pytorch", "state": status.pop("state", {"running": {}})}
    return read.slim(
        {
            "metadata": {"name": f"p-{index}", "uid": uid, "labels": labels, "creationTimestamp": "t"},
            "spec": {"nodeName": "n"},
            "status": {"phase": "Running", "containerStatuses": [container], **status},
        }
    )


def status(found: dict[str, Any], *pods: dict[str, Any], seen: dict[int, str] | None = None) -> JobStatus:
    return read_job(KIND, found, pods, {} if seen is None else seen)


def phases(found: JobStatus) -> list[WorkerPhase]:
    return [worker.phase for worker in found.workers]


# -- rendering ---------------------------------------------------------------------------------------------------------


def test_it_leaves_every_decision_to_the_run() -> None:
    body = rendered()
    assert (body["apiVersion"], body["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    assert body["spec"]["runPolicy"] == {"cleanPodPolicy": "None"}
    assert body["spec"]["nprocPerNode"] == "1"
    assert "elasticPolicy" not in body["spec"]
    (worker,) = body["spec"]["pytorchReplicaSpecs"].values()
    assert (worker["replicas"], worker["restartPolicy"]) == (2, "Never")


def test_its_container_is_called_pytorch_and_knows_its_index() -> None:
    (container,) = template(rendered())["spec"]["containers"]
    assert container["name"] == "pytorch"
    path = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    assert env(rendered())["AIRFLOW_ELASTIC_INDEX"] == path
    assert "AIRFLOW_ELASTIC_WORKERS_BEFORE" not in env(rendered())


def test_a_master_is_worker_0() -> None:
    body = rendered(3, master=True)
    replicas = body["spec"]["pytorchReplicaSpecs"]
    assert {name: one["replicas"] for name, one in replicas.items()} == {"Master": 1, "Worker": 2}
    assert {one["restartPolicy"] for one in replicas.values()} == {"Never"}
    assert "AIRFLOW_ELASTIC_WORKERS_BEFORE" not in env(body, "Master")
    assert env(body)["AIRFLOW_ELASTIC_WORKERS_BEFORE"] == "1"
    assert KIND.index(pod(0, "master")) == 0
    assert [KIND.index(pod(i, before=1)) for i in range(2)] == [1, 2]
    assert KIND.workers(KIND.slim({**body, "metadata": {"name": "n", "uid": "u"}})) == 3


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"elastic_policy": {}}, {"minReplicas": 2, "maxReplicas": 5}),
        ({"elastic_policy": {}, "master": True}, {"minReplicas": 1, "maxReplicas": 4}),
        (
            {"elastic_policy": {"maxReplicas": 9, "rdzvBackend": "c10d", "rdzvId": "x", "maxRestarts": 0}},
            {"minReplicas": 2, "maxReplicas": 9, "rdzvBackend": "c10d", "rdzvId": "x", "maxRestarts": 0},
        ),
    ],
)
def test_an_elastic_policy_has_the_bounds_of_the_run(options: dict[str, Any], policy: dict[str, Any]) -> None:
    assert rendered(2, **options)["spec"]["elasticPolicy"] == policy


def test_what_the_run_policy_may_say_is_handed_on() -> None:
    policy = {
        "suspend": True,
        "managedBy": "kueue.x-k8s.io/multikueue",
        "schedulingPolicy": {"minAvailable": 2, "queue": "ml"},
    }
    assert rendered(run_policy=policy)["spec"]["runPolicy"] == {**policy, "cleanPodPolicy": "None"}


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"run_policy": {"cleanPodPolicy": "All"}}, "engine_options.run_policy.cleanPodPolicy"),
        ({"run_policy": {"backoffLimit": 3}}, "engine_options.run_policy.backoffLimit"),
        ({"run_policy": {"activeDeadlineSeconds": 3}}, "engine_options.run_policy.activeDeadlineSeconds"),
        ({"run_policy": {"ttlSecondsAfterFinished": 3}}, "engine_options.run_policy.ttlSecondsAfterFinished"),
        ({"run_policy": {"suspended": True}}, "engine_options.run_policy.suspended"),
        (
            {"elastic_policy": {"metrics": []}, "queue": "team"},
            "engine_options.elastic_policy.metrics",
        ),
        ({"elastic_policy": {"min": 1}}, "engine_options.elastic_policy.min"),
        ({"masters": 2}, "engine_options.masters"),
    ],
)
def test_what_would_decide_in_place_of_the_run_is_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        PyTorchJobEngine().check(job(**options).spec)
    assert [problem.path for problem in caught.value.problems] == [path]


FOLLOWING = {"elastic_policy": {"metrics": [{"type": "Resource", "resource": {"name": "cpu"}}]}}


def test_either_an_autoscaler_of_the_cluster_or_a_policy_decides() -> None:
    spec = replace(job(**FOLLOWING).spec, scaling_policy=ScalingPolicy(capacity=CapacityRule()))
    with pytest.raises(SpecError, match=r"elastic_policy\.metrics.*scaling\.policy"):
        PyTorchJobEngine().check(spec)
    PyTorchJobEngine().check(replace(spec, scaling_policy=None))


def test_with_metrics_the_run_tells_its_own_number_beside_the_workers() -> None:
    made = {**rendered(2, **FOLLOWING), "metadata": {**rendered(2, **FOLLOWING)["metadata"], "uid": "u"}}
    made["metadata"] |= {"generation": 1, "name": "j"}
    assert read_job(KIND, KIND.slim(made), [], {}).asked is None
    made["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    made["metadata"]["generation"] = 2
    assert read_job(KIND, KIND.slim(made), [], {}).asked == Asked(3, "j@2")
    change = KIND.scaled(made, 3).body
    made["metadata"]["annotations"] |= change["metadata"]["annotations"]
    assert read_job(KIND, KIND.slim(made), [], {}).asked is None


def test_without_metrics_nobody_else_is_followed() -> None:
    made = rendered(2)
    made["metadata"] |= {"uid": "u", "generation": 1}
    made["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3
    assert read_job(KIND, KIND.slim(made), [], {}).asked is None
    assert "metadata" not in KIND.scaled(made, 3).body


def test_an_autoscaler_knows_no_unit() -> None:
    units = spec(workers=Workers(2, min=2, max=4, node_unit=2), engine_options={"image": "i", **FOLLOWING})
    with pytest.raises(SpecError, match="knows no unit"):
        PyTorchJobEngine().check(units)
    PyTorchJobEngine().check(job(**FOLLOWING).spec)


def test_a_master_is_never_alone() -> None:
    alone = spec(workers=Workers(2, min=1), engine_options={"image": "i", "master": True})
    with pytest.raises(SpecError, match=r"workers\.min"):
        PyTorchJobEngine().check(alone)
    PyTorchJobEngine().check(job(master=True).spec)


def test_its_options_are_its_own() -> None:
    assert isinstance(options_of(job(master=True).spec, KIND.options), PyTorchJobOptions)
    with pytest.raises(SpecError, match="master"):
        options_of(job(master=True).spec)


def test_names_of_pods_fit_with_every_name_of_a_job() -> None:
    assert KIND.longest_name >= MAX_JOB_NAME
    assert len("x" * KIND.longest_name + "-worker-99") == 63


# -- scale steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "workers", "replicas"),
    [({}, 1, 1), ({}, 4, 4), ({"master": True}, 2, 1), ({"master": True}, 4, 3)],
)
def test_only_workers_come_and_go(options: dict[str, Any], workers: int, replicas: int) -> None:
    body, part = KIND.scaled(rendered(2, **options), workers)
    assert part is None
    assert body == {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas}}}}


@pytest.mark.parametrize(("options", "workers"), [({}, 0), ({"master": True}, 1)])
def test_never_without_a_worker(options: dict[str, Any], workers: int) -> None:
    with pytest.raises(EngineError, match="must have a worker"):
        KIND.scaled(rendered(2, **options), workers)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_running_is_what_containers_say_not_the_job() -> None:
    found = owner(2, ("Created", "True"), ("Running", "True"))
    assert phases(status(found, pod(0))) == [WorkerPhase.RUNNING, WorkerPhase.PENDING]


def test_a_job_that_has_failed_still_trains_and_makes_no_more_pods() -> None:
    found = owner(3, ("Created", "True"), ("Running", "False"), ("Failed", "True"))
    read = status(found, pod(0), pod(1))
    assert phases(read) == [WorkerPhase.RUNNING, WorkerPhase.RUNNING, WorkerPhase.LOST]
    assert read.workers[2].reason == "the PyTorchJob makes no more pods: is Failed"


@pytest.mark.parametrize(
    ("options", "changes", "expected"),
    [
        ({}, {}, ["succeeded", "succeeded"]),
        ({"elastic_policy": {}}, {}, ["lost", "lost"]),  # any other worker may have been the one
        ({"master": True}, {}, ["succeeded", "lost"]),
    ],
)
def test_without_pods_success_is_what_the_job_can_know(
    options: dict[str, Any], changes: dict[str, Any], expected: list[str]
) -> None:
    found = owner(2, ("Running", "False"), ("Succeeded", "True"), changes=changes, **options)
    assert [str(phase) for phase in phases(status(found))] == expected


def test_terminal_conditions_may_be_false() -> None:
    found = owner(1, ("Failed", "False"), ("Succeeded", "False"), ("Suspended", "False"))
    assert phases(status(found, pod(0))) == [WorkerPhase.RUNNING]


def test_scaled_to_nothing_is_no_success() -> None:
    nothing = {"pytorchReplicaSpecs": {"Worker": {"replicas": 0}}}
    found = status(owner(2, ("Succeeded", "True"), changes=nothing))
    assert phases(found) == [WorkerPhase.LOST]
    assert not found.succeeded


def test_suspended_before_it_began_is_waiting_and_later_is_taken_away() -> None:
    found = owner(2, ("Suspended", "True"), run_policy={"suspend": True})
    assert status(found).waiting is Waiting.QUEUED
    taken = status(found, seen={0: "u", 1: "v"})
    assert {(worker.phase, worker.preempted) for worker in taken.workers} == {(WorkerPhase.LOST, True)}


def test_a_pod_beyond_the_replicas_is_one_that_leaves() -> None:
    """Also one that the operator makes anew for a moment where several leave."""
    found = status(owner(1), pod(0), pod(1), pod(2))
    assert phases(found) == [WorkerPhase.RUNNING, WorkerPhase.LEFT, WorkerPhase.LEFT]


def test_a_wedged_pod_of_a_lost_node_is_lost() -> None:
    """The operator shows it running, and its name taken, until the node is back."""
    gone = [
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "m"}
    ]
    found = status(owner(2, ("Restarting", "True")), pod(0), pod(1, conditions=gone))
    assert phases(found) == [WorkerPhase.RUNNING, WorkerPhase.LOST]
    assert "node n is gone" in str(found.workers[1].reason)


def test_a_pod_made_anew_is_not_waited_for() -> None:
    """It may be waiting for a place itself, and would only find that its worker has had its life."""
    found = owner(2)
    seen: dict[int, str] = {}
    assert phases(status(found, pod(0), pod(1), seen=seen)) == [WorkerPhase.RUNNING, WorkerPhase.RUNNING]
    waiting = pod(1, uid="v", state={"waiting": {"reason": "ContainerCreating"}})
    for other in (waiting, pod(1, uid="v")):
        assert phases(status(found, pod(0), other, seen=seen)) == [WorkerPhase.RUNNING, WorkerPhase.LOST]


def test_an_index_that_has_left_may_come_again() -> None:
    seen: dict[int, str] = {}
    assert phases(status(owner(2), pod(0), pod(1), seen=seen))[1] is WorkerPhase.RUNNING
    assert phases(status(owner(1), pod(0), pod(1), seen=seen))[1] is WorkerPhase.LEFT
    assert phases(status(owner(2), pod(0), pod(1, uid="v"), seen=seen))[1] is WorkerPhase.RUNNING


async def test_a_job_that_was_never_made_is_closed_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that the engine has refused would wait for a cluster before it ends."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    spec = RunSpec(("train.py",), engine="pytorchjob", engine_options={"image": "trainer:1"})
    await PyTorchJobEngine().close(Job(f"{tmp_path}/run", spec, 1, 1))
