"""ElasticJobs rendered and read purely. `tests/cluster/kinds` asks a real API server."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.elasticjob import ElasticJobEngine, ElasticJobKind
from airflow_elastic.engines.kube.kinds.elasticjob_crd import findings, fitted
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.engines.kube.watch.pod_status import slim
from airflow_elastic.spec.errors import SpecError, SubmitRefused
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from airflow_elastic.spec.status import Waiting, WorkerPhase

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Client, Resource
    from airflow_elastic.adapters.kube.hub import Hub

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


def test_restart_policy_is_always_written() -> None:
    """Without it the operator makes the master and no worker, silently."""
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


@pytest.mark.parametrize("option", [{"optimize_mode": "single-job"}, {"auto_scale": True}])
def test_either_dlrover_or_a_policy_decides(option: dict[str, Any]) -> None:
    spec = replace(
        job(**option).spec, workers=Workers(2, max=4), scaling_policy=ScalingPolicy(capacity=CapacityRule())
    )
    with pytest.raises(SpecError, match=rf"{next(iter(option))}.*scaling\.policy"):
        ElasticJobEngine().check(spec)
    ElasticJobEngine().check(replace(spec, scaling_policy=None))


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"distribution_strategy": "AllReduce"}, "distribution_strategy"),
        ({"ttl_seconds": 60}, "ttl_seconds"),
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


def test_the_mode_of_a_brain_takes_no_brain() -> None:
    """DLRover accepts that: its master says so in its log, and works without."""
    spec = rendered(optimize_mode="cluster")["spec"]
    assert spec["optimizeMode"] == "cluster"
    assert "brainService" not in spec


# -- what is installed -------------------------------------------------------------------------------------------------

HELM, BASES = "helm_install/crds", "manifests/bases"


def schema(form: str) -> dict[str, Any]:
    """As far as it matters, what an API server tells of the CRDs that DLRover has published."""
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    metadata = {HELM: {"labels": texts, "annotations": texts}, BASES: {}}[form]
    template = {
        "properties": {"metadata": {"type": "object", **({"properties": metadata} if metadata else {})}}
    }
    kinds = {"type": "object", "additionalProperties": {"properties": {"template": template}}}
    fields = {HELM: ["suspend"], BASES: ["enableDynamicSharding", "enableElasticScheduling"]}[form]
    spec = {"replicaSpecs": kinds, **{name: {"type": "boolean"} for name in fields}}
    return {"properties": {"metadata": {"allOf": [{"$ref": "any"}]}, "spec": {"properties": spec}}}


class Cluster:
    """A client of a cluster that tells this schema of ElasticJobs."""

    server = "https://cluster"

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema

    async def schema(self, resource: Resource) -> dict[str, Any]:
        return self._schema


async def made(found: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The metadata of the templates that a cluster of this schema is sent."""
    engine, one = ElasticJobEngine(), job(**options)
    read = options_of(one.spec, engine.kind.options)
    rendered = engine.kind.render(one, read)
    ((_, body),) = await fitted(cast("Client", Cluster(found)), rendered, read)
    assert rendered == engine.kind.render(one, read), "what was rendered has changed"
    return [spec["template"]["metadata"] for spec in body["spec"]["replicaSpecs"].values()]


@pytest.mark.parametrize("found", [schema(HELM), {}], ids=["helm", "none told"])
async def test_templates_have_our_metadata_where_there_is_room(found: dict[str, Any]) -> None:
    assert all(one.keys() == {"labels", "annotations"} for one in await made(found, queue="mine"))


async def test_templates_go_without_metadata_where_the_installed_kind_has_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """DLRover's documents tell to apply this one; the API server refuses what it does not have."""
    assert await made(schema(BASES)) == [{}, {}]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert await made(schema(BASES), labels={"team": "a"}) == [{}, {}]
    assert "no labels and annotations in their templates" in caplog.text


async def test_what_is_created_is_what_the_installed_kind_takes() -> None:
    """By the engine itself, and not only by the function that it has for that."""

    class Recording(Cluster):
        async def create(self, resource: Resource, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
            assert all(not one["template"]["metadata"] for one in body["spec"]["replicaSpecs"].values())
            return {**body, "metadata": {**body["metadata"], "uid": "1"}}

    engine, one = ElasticJobEngine(), job()
    shared = SimpleNamespace(client=Recording(schema(BASES)))
    await engine._create(cast("Hub", shared), one, options_of(one.spec, engine.kind.options))


async def test_a_queue_that_could_not_find_the_pods_is_refused() -> None:
    with pytest.raises(
        SubmitRefused, match=r"queue cannot be used.*no labels and annotations.*helm_install/crds"
    ):
        await made(schema(BASES), queue="mine")


@pytest.mark.parametrize(
    ("form", "subjects"), [(HELM, ["options"]), (BASES, ["templates", "options"])], ids=["helm", "bases"]
)
async def test_doctor_tells_what_the_installed_kind_lacks(form: str, subjects: list[str]) -> None:
    found = await findings(cast("Client", Cluster(schema(form))), "ml")
    assert [one.subject for one in found] == [f"elasticjob: {subject}" for subject in subjects]
    assert ("suspend" in found[-1].text) is (form == BASES)
    marks = {(one.ok, one.needed, one.part) for one in found}
    assert marks == {(False, False, True)}, "no tick and no fault, and the engine can be used"


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
