"""PyTorchTrainingJobs in both published forms, rendered and read purely."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.tensorstack import TensorStackEngine, TensorStackKind, form_of
from airflow_elastic.spec.errors import EngineError, SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from tests.support.kubernetes.cluster import SCRIPTS

KIND = TensorStackKind()
AGENT = ["-P", "-m", "airflow_elastic.runtime.pod"]


def rendered(
    *, workers: Workers | None = None, deadline: float | None = None, **options: Any
) -> dict[str, Any]:
    spec = RunSpec(
        ("train.py",),
        engine="pytorchtrainingjob",
        workers=workers or Workers(2, min=1, max=4),
        active_deadline_seconds=deadline,
        engine_options={"image": "trainer:1", **options},
    )
    engine = TensorStackEngine()
    engine.check(spec)
    (body,) = engine.render(Job("s3://b/r", spec, 1, 2))["items"]
    return dict(body["spec"])


def container(spec: dict[str, Any]) -> dict[str, Any]:
    return dict(spec["replicaSpecs"][0]["template"]["spec"]["containers"][0])


def test_a_run_that_may_scale_is_elastic_and_each_torchrun_stands_alone() -> None:
    spec = rendered(form="reference")
    assert spec["elastic"] == {"enabled": True, "minReplicas": 1, "maxReplicas": 4, "expectedReplicas": 2}
    assert spec["torchrunConfig"] == {
        "enabled": True,
        "maxRestarts": 0,
        "procPerNode": "1",
        "rdzvBackend": "c10d",
        "extraOptions": ["--standalone", "--nnodes=1"],
    }
    assert (container(spec)["command"], container(spec)["args"]) == (["python"], AGENT)


@pytest.mark.parametrize("form", ["reference", "guide"])
def test_a_run_of_fixed_size_needs_no_torchrun(form: str) -> None:
    spec = rendered(form=form, workers=Workers(2))
    assert not {"elastic", "torchrunConfig"} & spec.keys()
    assert container(spec)["command"] == ["python", *AGENT]
    assert container(spec)["name"] == "python"


def test_the_guides_words() -> None:
    spec = rendered(form="guide", torchrun=True, rdzv_backend="etcd", torchrun_options=["--log-dir=/l"])
    assert "elastic" not in spec
    assert spec["torchrunConfig"] == {
        "enable": True,
        "minNodes": 1,
        "maxRestarts": 0,
        "procPerNode": "1",
        "rdzvBackend": "etcd",
        "extraOptions": ["--standalone", "--nnodes=1", "--log-dir=/l"],
    }


def test_nobody_but_the_run_restarts_or_removes_workers() -> None:
    spec = rendered(deadline=60.5)
    assert spec["runPolicy"] == {"backoffLimit": 0, "activeDeadlineSeconds": 61, "cleanUpPolicy": "None"}
    assert spec["replicaSpecs"][0]["restartPolicy"] == "Never"


def test_queue_tensorboard_debug_and_pause() -> None:
    board = {"image": "tb:1", "log_filesets": ["t9k://pvc/logs"]}
    spec = rendered(queue="team", queue_rank=50, tensorboard=board, debug={"command": ["sleep", "9"]})
    assert spec["scheduler"] == {"t9kScheduler": {"queue": "team", "priority": 50}}
    assert spec["tensorboardSpec"] == {"image": "tb:1", "trainingLogFilesets": ["t9k://pvc/logs"]}
    one = {"type": "worker", "skipInitContainer": False, "command": ["sleep", "9"]}
    assert spec["runMode"] == {"debug": {"enabled": True, "replicaSpecs": [one]}}
    assert rendered(pause=True)["runMode"] == {"pause": {"enabled": True}}
    assert rendered(debug={}, form="guide")["runMode"]["debug"]["enable"] is True


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"form": "v2"}, "form"),
        ({"queue": "q", "queue_rank": 101}, "queue_rank"),
        ({"queue_rank": 1}, "queue_rank"),
        ({"rdzv_backend": "nccl"}, "rdzv_backend"),
        ({"pause": True, "debug": {}}, "pause"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError, match=rf"engine_options\.{path}"):
        rendered(**options)


@pytest.mark.parametrize("form", ["reference", "guide"])
def test_the_form_is_known_by_the_schema(form: str) -> None:
    crd = yaml.safe_load((SCRIPTS.parent / "crds" / f"pytorchtrainingjobs-{form}.yaml").read_text())
    assert form_of(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]) == form


# -- reading -----------------------------------------------------------------------------------------------------------


def owner(*conditions: tuple[str, str], **spec: Any) -> dict[str, Any]:
    told = [{"type": name, "status": "True", "message": text} for name, text in conditions]
    body = {"metadata": {"name": "j", "uid": "1"}, "spec": {"replicaSpecs": [{"replicas": 2}], **spec}}
    return KIND.slim({**body, "status": {"conditions": told}})


def test_workers_are_known_by_the_end_of_their_name() -> None:
    names = {"j-worker-0": 0, "j-worker-12": 12, "j-tensorboard": None}
    assert {name: KIND.index({"metadata": {"name": name}}) for name in names} == names


def test_what_the_job_says_of_workers_without_pods() -> None:
    def phases(one: dict[str, Any]) -> set[WorkerPhase]:
        return {worker.phase for worker in read_job(KIND, one, [], {}).workers}

    assert phases(owner()) == {WorkerPhase.PENDING}
    assert phases(owner(("Running", ""))) == {WorkerPhase.PENDING}
    assert phases(owner(("Completed", ""))) == {WorkerPhase.SUCCEEDED}
    assert phases(owner(("Failed", "deadline"))) == {WorkerPhase.LOST}


def test_a_paused_job_waits() -> None:
    paused = owner(runMode={"pause": {"enabled": True}})
    assert {w.waiting for w in read_job(KIND, paused, [], {}).workers} == {Waiting.QUEUED}


def test_only_an_elastic_job_is_scaled_in_place() -> None:
    elastic = {"elastic": {"enabled": True, "expectedReplicas": 3}}
    assert KIND.workers(owner(**elastic)) == 3
    assert KIND.scaled({"spec": elastic}, 4).body == {"spec": {"elastic": {"expectedReplicas": 4}}}
    with pytest.raises(EngineError, match="not elastic"):
        KIND.scaled({"spec": {}}, 4)
