"""TrainJobs, rendered and read without a cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kind import lacks_pods, read_job
from airflow_elastic.engines.kube.kinds.job import JobKind
from airflow_elastic.engines.kube.kinds.trainjob import TrainJobEngine, TrainJobKind, misses_runtime
from airflow_elastic.engines.kube.watch import api_errors
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus

KIND = TrainJobKind()


def make(*, name: str = "run", env: dict[str, str] | None = None, **options: Any) -> RunSpec:
    options = {"image": "me/train:1", "namespace": "ml", **options}
    return RunSpec(
        command=("train.py",),
        name=name,
        engine="trainjob",
        env=env or {},
        workers=Workers(2, min=1, max=4, resources={"nvidia.com/gpu": "1"}),
        engine_options=options,
    )


def rendered(spec: RunSpec, workers: int = 2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = TrainJobEngine().render(Job("s3://b/run", spec, 1, workers))["items"]
    return found


# -- rendering -----------------------------------------------------------------------------------------------------


def test_the_runtime_comes_first_and_restarts_nothing() -> None:
    runtime, job = rendered(make(node_selector={"pool": "gpu"}), 3)
    assert [one["kind"] for one in (runtime, job)] == ["TrainingRuntime", "TrainJob"]
    assert job["spec"] == {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "TrainingRuntime",
            "name": runtime["metadata"]["name"],
        },
        "trainer": {"numNodes": 3},
    }
    jobset = runtime["spec"]["template"]["spec"]
    assert "failurePolicy" not in jobset
    (node,) = jobset["replicatedJobs"]
    child = node["template"]
    assert (node["name"], child["spec"]["backoffLimitPerIndex"]) == ("node", 0)
    assert "backoffLimit" not in child["spec"]  # with 0 there one lost worker would end all others
    pod = child["spec"]["template"]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert pod["spec"]["containers"][0]["name"] == "node"
    ours = {"airflow-elastic/job": job["metadata"]["name"], "app.kubernetes.io/managed-by": "airflow-elastic"}
    for metadata in (runtime["metadata"], job["metadata"], child["metadata"], pod["metadata"]):
        assert ours.items() <= metadata["labels"].items()


@pytest.mark.parametrize("name", ["x" * 200, "run", "a.b_c"])
def test_names_fit_into_the_names_of_its_pods(name: str) -> None:
    for one in rendered(make(name=name)):
        assert len(f"{one['metadata']['name']}-node-0-99-abcde") <= 63


def test_a_runtime_of_somebody_else_gets_what_patches_can_carry() -> None:
    volumes = [{"mount_path": "/data", "claim": "data"}]
    spec = make(runtime={"name": "torch-distributed"}, volumes=volumes, tolerations=[{"operator": "Exists"}])
    TrainJobEngine().check(spec)
    (job,) = rendered(spec)
    told = job["spec"]
    assert told["runtimeRef"]["kind"] == "ClusterTrainingRuntime"
    trainer = told["trainer"]
    assert (trainer["image"], trainer["numNodes"]) == ("me/train:1", 2)
    assert trainer["command"] == ["python", "-P", "-m", "airflow_elastic.runtime.pod"]
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "1"}
    assert {"AIRFLOW_ELASTIC_INDEX", "AIRFLOW_ELASTIC_RUN_URI"} <= {one["name"] for one in trainer["env"]}
    (patch,) = told["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    assert pod["metadata"]["labels"]["airflow-elastic/job"] == job["metadata"]["name"]
    assert node["template"]["metadata"]["labels"]["airflow-elastic/job"] == job["metadata"]["name"]
    assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert pod["spec"]["containers"] == [
        {"name": "node", "volumeMounts": [{"name": "airflow-elastic-volume-0", "mountPath": "/data"}]}
    ]
    assert "restartPolicy" not in json.dumps(job)


def test_what_patches_cannot_carry_is_told() -> None:
    spec = make(
        runtime={"name": "theirs", "kind": "TrainingRuntime"},
        env={"PET_NNODES": "1:4"},
        host_network=True,
        image_pull_policy="Never",
        init_containers=[{"name": "one", "image": "x"}],
        env_from=[{"secretRef": {"name": "s"}}],
        pod_template={"spec": {"runtimeClassName": "nvidia", "containers": [{"name": "side", "image": "x"}]}},
    )
    with pytest.raises(SpecError, match="cannot give it to the runtime theirs") as error:
        TrainJobEngine().check(spec)
    assert {problem.path for problem in error.value.problems} == {
        "engine_options.host_network",
        "engine_options.image_pull_policy",
        "engine_options.init_containers",
        "engine_options.env_from",
        "engine_options.pod_template.spec.runtimeClassName",
        "engine_options.pod_template.spec.containers",
        "env.PET_NNODES",
    }
    # A runtime of our own carries all of it.
    own = {name: value for name, value in spec.engine_options.items() if name != "runtime"}
    TrainJobEngine().check(make(**{**own, "image": "me/train:1"}))


def test_a_time_to_live_is_refused_as_there_is_none() -> None:
    """A JobSet that has failed would be made anew when its time is over, again and again."""
    with pytest.raises(SpecError, match="no time to live"):
        TrainJobEngine().check(make(ttl_seconds=60))


def test_a_kind_of_runtime_that_there_is_not() -> None:
    with pytest.raises(SpecError, match="ClusterTrainingRuntime"):
        TrainJobEngine().check(make(runtime={"name": "theirs", "kind": "Runtime"}))


@pytest.mark.parametrize(
    ("refusal", "yet"),
    [
        ("TrainingRuntime must be created before the TrainJob is created", True),  # Trainer
        ("""admission webhook "vtrainjob.kb.io" denied the request: runtime 'a' not found""", True),  # Kueue
        ("""admission webhook "vtrainjob.kb.io" denied the request: runtime 'b' not found""", False),
        ('pods "x" is forbidden: exceeded quota', False),
    ],
)
def test_a_runtime_that_a_webhook_does_not_know_yet_is_waited_for(refusal: str, yet: bool) -> None:
    assert misses_runtime(f"the cluster refuses to create trainjobs: {refusal}", "a") is yet


def test_it_is_found_by_its_name() -> None:
    assert isinstance(find_engine("trainjob"), TrainJobEngine)


# -- reading -------------------------------------------------------------------------------------------------------


def owner(*conditions: str, suspend: bool = False, child: dict[str, Any] | None = None) -> dict[str, Any]:
    made = {
        "metadata": {"name": "a", "uid": "1"},
        "spec": {"suspend": suspend, "trainer": {"numNodes": 2}},
        "status": {"conditions": [{"type": c, "status": "True", "message": "why"} for c in conditions]},
    }
    return {**KIND.slim(made), "child": child}


def child(workers: int = 2, **status: Any) -> dict[str, Any]:
    return JobKind().slim(
        {"metadata": {"name": "a-node-0", "uid": "2"}, "spec": {"completions": workers}, "status": status}
    )


def read(found: dict[str, Any], seen: set[int] | None = None, why: str | None = None) -> JobStatus:
    return read_job(KIND, found, [], dict.fromkeys(seen or (), "uid"), why)


def test_without_a_child_job_it_is_starting_and_says_what_is_in_the_way() -> None:
    status = read(owner())
    assert [worker.waiting for worker in status.workers] == [Waiting.STARTING] * 2
    assert lacks_pods(status)
    assert read(owner(), why="Refused: no").workers[0].reason == "Refused: no"


def test_the_number_of_workers_is_the_child_jobs() -> None:
    assert len(read(owner(child=child(4))).workers) == 4
    assert JobKind().scaled(child(4), 3).body == {"spec": {"parallelism": 3, "completions": 3}}


def test_suspended_it_is_queued_and_what_ran_is_lost() -> None:
    status = read(owner("Suspended", suspend=True, child=child()), {0})
    assert [worker.phase for worker in status.workers] == [WorkerPhase.LOST, WorkerPhase.PENDING]
    assert status.workers[0].preempted
    assert status.workers[1].waiting is Waiting.QUEUED
    assert not lacks_pods(status)


def test_pods_that_are_gone_are_told_of_by_the_child_job() -> None:
    status = read(owner(child=child(completedIndexes="0", failedIndexes="1")), {0, 1})
    assert [worker.phase for worker in status.workers] == [WorkerPhase.SUCCEEDED, WorkerPhase.LOST]


def test_the_trainjobs_own_end_counts_where_the_child_job_is_gone() -> None:
    assert read(owner("Complete"), {0, 1}).succeeded
    failed = read(owner("Failed"), {0, 1}).workers
    assert failed[0] == WorkerStatus("node-0", WorkerPhase.LOST, reason="the TrainJob has failed: why")


# -- what is in the way ----------------------------------------------------------------------------------------------


async def test_the_newest_step_comes_again_while_something_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_errors, "LOOK_SECONDS", 0.01)
    go, still = asyncio.Event(), asyncio.Event()

    async def steps() -> AsyncIterator[int]:
        yield 1
        await go.wait()
        yield 2

    still.set()
    found: list[tuple[int, bool]] = []
    async for step in api_errors.with_ticks(steps(), still):
        found.append(step)
        if len(found) == 3:
            still.clear()
            go.set()
    assert found == [(1, False), (1, True), (1, True), (2, False)]


async def test_the_newest_warning_is_told() -> None:
    class Client:
        async def list(self, resource: Any, namespace: str, *, fields: str) -> tuple[list[Any], str]:
            assert fields.endswith(",type=Warning")
            events = {
                "a": [
                    {
                        "lastTimestamp": "2026-01-01T00:00:02Z",
                        "reason": "New",
                        "message": "no",
                        "metadata": {},
                    },
                    {"eventTime": "2026-01-01T00:00:01Z", "reason": "Old", "message": "yes", "metadata": {}},
                ]
            }
            return events.get(fields.split(",", maxsplit=1)[0].removeprefix("involvedObject.name="), []), "1"

    client: Any = Client()
    assert await api_errors.trouble(client, "ns", ("a", "a-node-0")) == "New: no"
    assert await api_errors.trouble(client, "ns", ("b",)) is None
