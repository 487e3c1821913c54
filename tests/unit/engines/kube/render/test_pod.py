"""The pod that all cluster engines share, and how one manifest is laid over another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.render.strategic_merge import overlay
from airflow_elastic.runtime import pod as agent
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, SecretRef, Workers


def manifest(engine: str = "job", *, avoid: tuple[str, ...] = (), **options: Any) -> dict[str, Any]:
    spec = RunSpec(
        command=("/app/train.py",),
        engine=engine,
        engine_options={"image": "trainer:1", **options},
        workers=Workers(2, resources={"nvidia.com/gpu": "1"}),
        secrets=(SecretRef("KEY", "kubernetes", "s3/key"),),
    )
    find_engine(engine).check(spec)
    rendered: dict[str, Any] = find_engine(engine).render(Job("s3://b/r", spec, 1, 2, avoid))["items"][0]
    return rendered


def pod(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = manifest(**options)["spec"]["template"]["spec"]
    return found


def test_requests_equal_limits_and_secrets_are_references() -> None:
    container = pod()["containers"][0]
    assert container["resources"] == {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    env = {one["name"]: one for one in container["env"]}
    assert env["KEY"] == {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "key"}}}


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"host_network": True}, "dnsPolicy", "ClusterFirstWithHostNet"),
        ({"priority_class": "high"}, "priorityClassName", "high"),
        ({"scheduler": "mine"}, "schedulerName", "mine"),
        ({"service_account": "me"}, "serviceAccountName", "me"),
        ({"image_pull_secrets": ["a"]}, "imagePullSecrets", [{"name": "a"}]),
        ({"node_selector": {"pool": "gpu"}}, "nodeSelector", {"pool": "gpu"}),
        ({"tolerations": [{"operator": "Exists"}]}, "tolerations", [{"operator": "Exists"}]),
        ({"init_containers": [{"name": "i"}]}, "initContainers", [{"name": "i"}]),
        (
            {"shared_memory": "8Gi"},
            "volumes",
            [{"name": "airflow-elastic-shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}],
        ),
        (
            {"volumes": [{"mount_path": "/data", "claim": "data"}]},
            "volumes",
            [{"name": "airflow-elastic-volume-0", "persistentVolumeClaim": {"claimName": "data"}}],
        ),
    ],
)
def test_each_word_becomes_its_field(options: dict[str, Any], field: str, value: object) -> None:
    assert pod(**options)[field] == value


def test_locked_memory_and_mounts_are_the_containers() -> None:
    volumes = [{"mount_path": "/data", "claim": "data", "read_only": True}]
    container = pod(ipc_lock=True, shared_memory="1Gi", volumes=volumes)["containers"][0]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert container["volumeMounts"] == [
        {"name": "airflow-elastic-volume-0", "mountPath": "/data", "readOnly": True},
        {"name": "airflow-elastic-shared-memory", "mountPath": "/dev/shm"},
    ]


def test_machines_to_avoid_are_excluded_from_each_alternative() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    terms = [{"matchExpressions": [zone]}, {}]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}
    found = pod(avoid=("node-7",), affinity=affinity)["affinity"]["nodeAffinity"][required]
    bad = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-7"]}
    assert found["nodeSelectorTerms"] == [{"matchExpressions": [zone, bad]}, {"matchExpressions": [bad]}]


def test_a_suspected_machine_is_the_last_choice() -> None:
    run = RunSpec(command=("/app/train.py",), engine="job", engine_options={"image": "i"})
    job = Job("s3://b/r", run, 2, 1, suspect="node-7")
    rendered = find_engine("job").render(job)["items"][0]
    affinity = rendered["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    bad = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-7"]}
    others = {"weight": 100, "preference": {"matchExpressions": [bad]}}
    assert affinity == {"preferredDuringSchedulingIgnoredDuringExecution": [others]}


def test_a_machine_to_avoid_that_may_be_the_only_one_is_liked_least() -> None:
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    mine = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    run = RunSpec(
        command=("/app/train.py",),
        engine="job",
        engine_options={"image": "i", "affinity": {"nodeAffinity": {preferred: [mine]}}},
    )
    job = Job("s3://b/r", run, 3, 1, ("node-7",), has_elsewhere=False)
    rendered = find_engine("job").render(job)["items"][0]
    found = rendered["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    bad = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-7"]}
    assert found == {preferred: [{"weight": 100, "preference": {"matchExpressions": [bad]}}, mine]}


@pytest.mark.parametrize("engine", ["job", "pytorchjob"])
def test_a_queue_is_named_on_the_owner_alone(engine: str) -> None:
    whole = manifest(engine, queue="team-a", queue_priority="high")
    assert whole["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team-a"
    assert whole["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert str(whole["spec"]).count("kueue.x-k8s.io") == 0


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"image": None}, "engine_options.image"),
        ({"namespace": "Not Legal"}, "engine_options.namespace"),
        ({"imag": "x"}, "engine_options.imag"),
        ({"shared_memory": "a lot"}, "engine_options.shared_memory"),
        ({"queue_priority": "high"}, "engine_options.queue_priority"),
        ({"volumes": [{"mount_path": "/d"}]}, "engine_options.volumes.0.claim"),
        ({"volumes": [{"mount_path": "d", "claim": "x"}]}, "engine_options.volumes.0.mount_path"),
    ],
)
def test_bad_options_are_refused_by_path(options: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        manifest(**options)
    assert path in [problem.path for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"tolerations": [1]}, {"tolerations": [2]}, {"tolerations": [2]}),
        (
            {"containers": [{"name": "t", "image": "a", "env": [{"name": "X", "value": "1"}]}]},
            {"containers": [{"name": "t", "env": [{"name": "Y", "value": "2"}]}, {"name": "side"}]},
            {
                "containers": [
                    {
                        "name": "t",
                        "image": "a",
                        "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                    },
                    {"name": "side"},
                ]
            },
        ),
    ],
)
def test_one_manifest_is_laid_over_another(base: Any, over: Any, merged: Any) -> None:
    before = repr(base)
    assert overlay(base, over) == merged
    assert repr(base) == before


def test_the_agent_started_by_hand_says_what_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {"AIRFLOW_ELASTIC_JOB": "j-a1"})
    with pytest.raises(SystemExit, match=r"^2$"):
        agent.be_pod()
    said = capsys.readouterr().err
    assert said.startswith("AIRFLOW_ELASTIC_RUN_URI, AIRFLOW_ELASTIC_ATTEMPT, ")
    assert "airflow-elastic run" in said


@pytest.mark.parametrize("engine", ["job", "pytorchjob", "trainjob", "elasticjob", "pytorchtrainingjob"])
def test_a_run_in_a_folder_is_looked_for_in_pods_and_not_in_a_label(engine: str, tmp_path: Path) -> None:
    found = find_engine(engine)
    assert isinstance(found, KubeEngine)
    labels = {"containers": "many"}
    volumes = [{"mount_path": str(tmp_path), "claim": "runs"}]
    for options in ({"labels": labels}, {"labels": labels, "volumes": volumes}):
        spec = RunSpec(("train.py",), engine=engine, engine_options={"image": "trainer:1", **options})
        job = Job(f"{tmp_path}/run", spec, 1, 1)
        assert ("do not see it" in (found.storage_problem(job) or "")) is ("volumes" not in options)
