"""ElasticJobs rendered and read purely; whether an API server takes them, tests/cluster/test_elasticjob.py shows."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.elasticjob import ElasticJobEngine, ElasticJobKind
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.read import slim
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase

KIND = ElasticJobKind()


def job(name: str = "digits", workers: int = 2, **options: Any) -> Job:
    spec = RunSpec(
        ("train.py",),
        name=name,
        engine="elasticjob",
        workers=Workers(workers, resources={"cpu": "2", "memory": "1Gi"}),
        engine_options={"image": "trainer:1", **options},
    )
    return Job("s3://bucket/run", spec, 1, workers)


def rendered(**options: Any) -> dict[str, Any]:
    engine, one = ElasticJobEngine(), job(**options)
    engine.check(one.spec)
    (found,) = engine.render(one)["items"]
    return dict(found)


def test_restart_policy_and_labels_are_always_written() -> None:
    """Without either the operator makes the master and no worker, silently."""
    ps = {"ps": {"replicas": 1, "command": ["ps"]}, "chief": {"replicas": 1, "command": ["chief"]}}
    found = rendered(distribution_strategy="ParameterServerStrategy", replicas=ps)
    specs = found["spec"]["replicaSpecs"]
    assert specs.keys() == {"dlrover-master", "worker", "ps", "chief"}
    for one in specs.values():
        assert one["template"]["spec"]["restartPolicy"] == "Never"
        assert one["template"]["metadata"]["labels"]
        assert one["restartCount"] == 0
        assert [container["name"] for container in one["template"]["spec"]["containers"]] == ["main"]


def test_the_master_runs_as_the_operator_would_run_it() -> None:
    found = rendered(
        namespace="ml",
        image_pull_policy="Never",
        master={"image": "dlrover:1", "python": "py", "options": {"pending_timeout": "60"}},
    )
    master = found["spec"]["replicaSpecs"]["dlrover-master"]["template"]["spec"]["containers"][0]
    name = found["metadata"]["name"]
    assert master["command"] == [
        *("py", "-m", "dlrover.python.master.main", "--platform", "pyk8s", "--namespace", "ml"),
        *("--job_name", name, "--port", "50001"),
        *(
            "--pending_fail_strategy",
            "0",
            "--pending_timeout",
            "60",
        ),  # else it ends a job that waits for room
    ]
    assert (master["image"], master["imagePullPolicy"]) == ("dlrover:1", "Never")
    assert found["metadata"]["annotations"]["pending_timeout"] == "60"


def test_all_of_the_spec_can_be_said() -> None:
    found = rendered(
        optimize_mode="cluster",
        brain_service="brain:50001",
        resource_limits={"cpu": "100"},
        envs={"A": {"name": "A", "value": "1"}},
        suspend=True,
        enable_dynamic_sharding=True,
        enable_elastic_scheduling=False,
        auto_scale=True,
        restart_timeout=60,
        priority="0.5",
    )["spec"]
    worker = found.pop("replicaSpecs")["worker"]
    assert found == {
        "distributionStrategy": "AllreduceStrategy",
        "optimizeMode": "cluster",
        "brainService": "brain:50001",
        "resourceLimits": {"cpu": "100"},
        "envs": {"A": {"name": "A", "value": "1"}},
        "suspend": True,
        "enableDynamicSharding": True,
        "enableElasticScheduling": False,
    }
    del worker["template"]
    assert worker == {
        "replicas": 2,
        "restartPolicy": "Never",
        "restartCount": 0,
        "autoScale": True,
        "restartTimeout": 60,
        "priority": "0.5",
    }


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"distribution_strategy": "AllReduce"}, "distribution_strategy"),
        ({"optimize_mode": "cluster"}, "brain_service"),
        ({"optimize_mode": "auto"}, "optimize_mode"),
        ({"priority": "urgent"}, "priority"),
        ({"priority": "1.5"}, "priority"),
        ({"replicas": {"ps": {"replicas": 1, "command": ["ps"]}}}, "replicas"),
        ({"distribution_strategy": "ParameterServerStrategy"}, "replicas"),
        ({"master": {"options": {"port": "1"}}}, "master.options.port"),
        ({"priority_class": "high"}, "priority_class"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        rendered(**options)
    assert [problem.path for problem in refused.value.problems] == [f"engine_options.{path}"]


def test_names_fit_into_the_name_of_the_masters_service() -> None:
    longest = Job("s3://b/" + "r" * 200, job("n" * 200).spec, 12345, 1).name
    assert len(f"elasticjob-{longest}-dlrover-master") <= 63
    assert len(f"{longest}-edljob-worker-999999") <= 63


# -- reading -----------------------------------------------------------------------------------------------------------


def owner(phase: str | None = "Running", message: str | None = None, **spec: Any) -> dict[str, Any]:
    condition = {"type": "Failed", "status": "True", "message": message}
    status = {"phase": phase, "status": {"conditions": [condition] if message else []}} if phase else None
    workers = {"worker": {"replicas": 2}}
    made = {"metadata": {"name": "j", "uid": "1"}, "spec": {"replicaSpecs": workers, **spec}}
    return KIND.slim({**made, "status": status} if status else made)


def pod(index: int, *, kind: str = "worker", made: int = 0, **state: Any) -> dict[str, Any]:
    """A pod as DLRover labels it; `made` tells older from newer ones."""
    labels = {
        "app": "dlrover",
        "elasticjob.dlrover/name": "j",
        "elasticjob.dlrover/replica-type": kind,
        "elasticjob.dlrover/replica-index": str(index + 2 * made),
        "elasticjob.dlrover/rank-index": str(index),
    }
    container = {"name": "main", "state": state or {"running": {}}}
    return slim(
        {
            "metadata": {
                "name": f"j-edljob-{kind}-{index}",
                "uid": f"{index}-{made}",
                "labels": labels,
                "creationTimestamp": f"2026-01-01T00:00:0{made}Z",
            },
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running", "containerStatuses": [container]},
        }
    )


def phases(
    owner: dict[str, Any], *pods: dict[str, Any], seen: dict[int, str] | None = None
) -> list[WorkerPhase]:
    return [one.phase for one in read_job(KIND, owner, pods, {} if seen is None else seen).workers]


def test_workers_are_known_by_their_rank_and_masters_are_none() -> None:
    status = read_job(KIND, owner(), [pod(0, kind="dlrover-master"), pod(1)], {})
    assert [(w.name, w.phase) for w in status.workers] == [
        ("node-0", WorkerPhase.PENDING),
        ("node-1", WorkerPhase.RUNNING),
    ]


def test_what_the_master_waits_for_is_told() -> None:
    before = ElasticJobEngine()._before_workers
    missing = {"reason": "ErrImageNeverPull", "message": "no image dlrover:1"}
    waiting = pod(0, kind="dlrover-master", waiting=missing)
    assert before([waiting]) == "the job master waits: ErrImageNeverPull: no image dlrover:1"
    assert before([pod(0, kind="dlrover-master")]) is None
    assert before([pod(0, waiting=missing)]) is None
    assert before([]) is None


def test_before_the_operator_has_looked_workers_are_still_to_come() -> None:
    assert phases(owner(None)) == [WorkerPhase.PENDING] * 2


def test_a_worker_made_anew_tells_how_it_ended() -> None:
    lost = '{"outcome": "lost", "at": 1.0, "reason": "node-1 did not start"}'
    again = pod(1, made=1, terminated={"exitCode": 1, "message": lost, "finishedAt": "2026-01-01T00:00:09Z"})
    assert phases(owner(), again, pod(0), pod(1)) == [WorkerPhase.RUNNING, WorkerPhase.LOST]


def test_when_the_master_has_died_workers_without_pods_are_lost() -> None:
    """What still runs goes on: our workers need no master."""
    dead = owner("Failed", "The job master failover count 1 is beyond the restart count 0.")
    status = read_job(KIND, dead, [pod(0)], {})
    assert [w.phase for w in status.workers] == [WorkerPhase.RUNNING, WorkerPhase.LOST]
    assert "failover count" in str(status.workers[1].reason)


def test_a_job_that_has_succeeded_stays_so_without_pods() -> None:
    assert phases(owner("Succeeded")) == [WorkerPhase.SUCCEEDED] * 2


def test_a_suspended_job_waits() -> None:
    for held in (owner("Suspended"), owner(None, suspend=True)):
        workers = read_job(KIND, held, [], {}).workers
        assert {(w.phase, w.waiting) for w in workers} == {(WorkerPhase.PENDING, Waiting.QUEUED)}
