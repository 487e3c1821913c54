"""What the engines rely on in a pod: a user's own word in the same place is refused by name, kept, or both hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.engines.kube.render.reserved_fields import RESERVED_FIELDS, UserValue
from airflow_elastic.engines.kube.render.strategic_merge import overlay
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import Health, RunSpec, Workers
from tests.support.builders import spec

ENGINES = ("job", "pytorchjob", "trainjob", "elasticjob", "pytorchtrainingjob")


def engine_of(name: str) -> KubeEngine:
    found = find_engine(name)
    assert isinstance(found, KubeEngine)
    return found


def run(engine: str, **options: Any) -> RunSpec:
    return spec(
        engine=engine,
        workers=Workers(2),
        health=Health(grace_seconds=30.0),
        engine_options={"image": "trainer:1", **options},
    )


def problems(given: RunSpec) -> list[str]:
    try:
        find_engine(given.engine).check(given)
    except SpecError as error:
        return [problem.path for problem in error.problems]
    return []


def template_of(given: RunSpec) -> dict[str, Any]:
    """The workers' pod template, wherever in the rendered objects it stands."""
    engine = engine_of(given.engine)
    todo: list[Any] = [engine.render(Job("s3://b/r", given, 1, 2))]
    while todo:
        one = todo.pop(0)
        if isinstance(one, dict):
            names = (
                [c["name"] for c in (one.get("spec") or {}).get("containers", ())]
                if "metadata" in one
                else []
            )
            commands = [c.get("command", []) for c in one["spec"]["containers"]] if names else []
            if any("airflow_elastic.runtime.pod" in word for command in commands for word in command):
                return one
        todo += one.values() if isinstance(one, dict) else one if isinstance(one, list) else []
    raise AssertionError("there is no pod")


def of_pod(**fields: Any) -> dict[str, Any]:
    return {"pod_template": {"spec": fields}}


def of_trainer(**fields: Any) -> Any:
    def options(container: str) -> dict[str, Any]:
        return of_pod(containers=[{"name": container, **fields}])

    return options


def labelled(name: str, value: str = "x") -> dict[str, Any]:
    return {"pod_template": {"metadata": {"labels": {name: value}}}}


REFUSED: list[tuple[Any, str]] = [
    (labelled("airflow-elastic/job"), "pod_template.metadata.labels.airflow-elastic/job"),
    ({"labels": {"airflow-elastic/attempt": "9"}}, "labels.airflow-elastic/attempt"),
    ({"annotations": {"airflow-elastic/run-uri": "x"}}, "annotations.airflow-elastic/run-uri"),
    (
        labelled("batch.kubernetes.io/job-completion-index"),
        "pod_template.metadata.labels.batch.kubernetes.io/job-completion-index",
    ),
    (
        labelled("training.kubeflow.org/replica-index"),
        "pod_template.metadata.labels.training.kubeflow.org/replica-index",
    ),
    (labelled("elasticjob.dlrover/name"), "pod_template.metadata.labels.elasticjob.dlrover/name"),
    (of_pod(restartPolicy="OnFailure"), "pod_template.spec.restartPolicy"),
    (of_pod(activeDeadlineSeconds=60), "pod_template.spec.activeDeadlineSeconds"),
    (of_pod(terminationGracePeriodSeconds=5), "pod_template.spec.terminationGracePeriodSeconds"),
    (of_trainer(command=["sleep", "1"]), "pod_template.spec.containers.0.command"),
    (of_trainer(args=["--epochs", "3"]), "pod_template.spec.containers.0.args"),
    (of_trainer(restartPolicy="Always"), "pod_template.spec.containers.0.restartPolicy"),
    (
        of_trainer(restartPolicyRules=[{"action": "Restart"}]),
        "pod_template.spec.containers.0.restartPolicyRules",
    ),
    (
        of_trainer(env=[{"name": "A", "value": "1"}, {"name": "AIRFLOW_ELASTIC_JOB", "value": "x"}]),
        "pod_template.spec.containers.0.env.1.name",
    ),
    (
        of_pod(volumes=[{"name": "airflow-elastic-volume-0", "emptyDir": {}}]),
        "pod_template.spec.volumes.0.name",
    ),
    (
        lambda name: {
            "shared_memory": "1Gi",
            **of_trainer(volumeMounts=[{"name": "dshm", "mountPath": "/dev/shm/"}])(name),
        },
        "pod_template.spec.containers.0.volumeMounts.0.mountPath",
    ),
    (
        lambda name: {
            "volumes": [{"mount_path": "/data", "claim": "data"}],
            **of_trainer(volumeMounts=[{"name": "other", "mountPath": "/data"}])(name),
        },
        "pod_template.spec.containers.0.volumeMounts.0.mountPath",
    ),
    (lambda name: {"init_containers": [{"name": name, "image": "i"}]}, "init_containers.0.name"),
    (
        lambda name: of_pod(initContainers=[{"name": name, "image": "i"}]),
        "pod_template.spec.initContainers.0.name",
    ),
    (
        lambda name: of_pod(containers=[{"name": name}, {"name": name, "image": "other"}]),
        "pod_template.spec.containers.1.name",
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("options", "path"), REFUSED, ids=[path for _, path in REFUSED])
def test_what_the_engines_rely_on_is_refused_by_name(engine: str, options: Any, path: str) -> None:
    given = options(engine_of(engine).kind.container) if callable(options) else options
    assert f"engine_options.{path}" in problems(run(engine, **given))


def test_a_gang_of_volcanos_is_the_jobs_own() -> None:
    theirs = {"pod_template": {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "mine"}}}}
    path = "engine_options.pod_template.metadata.annotations.scheduling.k8s.io/group-name"
    assert problems(run("job", queueing="volcano", **theirs)) == [path]


KEPT = of_pod(
    restartPolicy="Never",
    terminationGracePeriodSeconds=600,
    subdomain="mine",
    volumes=[{"name": "volume-0", "emptyDir": {}}, {"name": "shared-memory", "emptyDir": {}}],
)


@pytest.mark.parametrize("engine", ["job", "pytorchjob", "elasticjob", "pytorchtrainingjob"])
def test_what_does_no_harm_is_kept(engine: str) -> None:
    container = engine_of(engine).kind.container
    ours = {
        "name": container,
        "command": ["numactl", "--", "python", "-m", "airflow_elastic.runtime.pod"],
        "terminationMessagePath": "/tmp/end",
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    sidecar = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}
    labels = {"app.kubernetes.io/managed-by": "Helm"}
    annotations = {"kubectl.kubernetes.io/default-container": "proxy"}
    over = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {**KEPT["pod_template"]["spec"], "containers": [ours], "initContainers": [sidecar]},
    }
    given = run(engine, pod_template=over)
    assert problems(given) == []
    found = template_of(given)
    trainer = next(one for one in found["spec"]["containers"] if one["name"] == container)
    assert labels.items() <= found["metadata"]["labels"].items()
    assert annotations.items() <= found["metadata"]["annotations"].items()
    assert found["spec"]["terminationGracePeriodSeconds"] == 600
    assert found["spec"]["initContainers"] == [sidecar]
    env = {one["name"]: one.get("value") for one in trainer["env"]}
    assert env["AIRFLOW_ELASTIC_TERMINATION"] == "/tmp/end"


def test_what_nobody_has_checked_does_no_harm() -> None:
    """Options of a run that an earlier release began."""
    bad = {
        "metadata": {"labels": {"airflow-elastic/job": "x"}, "annotations": {"airflow-elastic/digest": "x"}},
        "spec": {
            "restartPolicy": "Always",
            "activeDeadlineSeconds": 1,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "trainer",
                    "restartPolicy": "Always",
                    "env": [{"name": "AIRFLOW_ELASTIC_JOB", "value": "x"}],
                }
            ],
        },
    }
    job = Job("s3://b/r", run("job", pod_template=bad), 1, 2)
    template = engine_of("job").render(job)["items"][0]["spec"]["template"]
    (trainer,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["airflow-elastic/job"] == job.name
    assert template["metadata"]["annotations"]["airflow-elastic/digest"] == job.spec.digest
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"]["terminationGracePeriodSeconds"] == 35
    assert "activeDeadlineSeconds" not in template["spec"]
    assert "restartPolicy" not in trainer
    assert {one["name"]: one.get("value") for one in trainer["env"]}["AIRFLOW_ELASTIC_JOB"] == job.name


@pytest.mark.parametrize("where", ["options", "template"])
def test_both_the_runs_terms_of_affinity_and_the_users_hold(where: str) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    near = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": "rack"}
    gpu = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    theirs = {
        "podAffinity": {required: [near]},
        "nodeAffinity": {required: {"nodeSelectorTerms": [gpu]}},
    }
    options = {"affinity": theirs} if where == "options" else of_pod(affinity=theirs)
    job = Job("s3://b/r", run("job", topology="zone", **options), 2, 2, ("n7",))
    found = engine_of("job").render(job)["items"][0]["spec"]["template"]["spec"]["affinity"]
    together = {"labelSelector": {"matchLabels": {"airflow-elastic/job": job.name}}, "topologyKey": "zone"}
    assert found["podAffinity"][required] == [together, near]
    not_there = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n7"]}
    (term,) = found["nodeAffinity"][required]["nodeSelectorTerms"]
    assert term == {"matchExpressions": [*gpu["matchExpressions"], not_there]}


def test_every_refusal_has_its_rule() -> None:
    assert all(one.rule and one.use for one in RESERVED_FIELDS)
    assert {one.fate for one in RESERVED_FIELDS} == set(UserValue)


@pytest.mark.parametrize(
    ("base", "over", "merged"),
    [
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/v"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/v"}}]},
        ),
        (
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}]},
            {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
        ),
        (
            {"ports": [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80}]},
            {"ports": [{"containerPort": 53}, {"containerPort": 80, "protocol": "TCP", "name": "http"}]},
            {
                "ports": [
                    {"containerPort": 53, "protocol": "UDP"},
                    {"containerPort": 80, "protocol": "TCP", "name": "http"},
                    {"containerPort": 53},
                ]
            },
        ),
    ],
)
def test_one_thing_is_not_said_in_two_ways(base: Any, over: Any, merged: Any) -> None:
    assert overlay(base, over) == merged


# -- manifests ---------------------------------------------------------------------------------------------------------


def manifest(
    *containers: dict[str, Any], metadata: dict[str, Any] | None = None, **pod: Any
) -> dict[str, Any]:
    template = {"metadata": metadata or {}, "spec": {"containers": list(containers), **pod}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "fit"},
        "spec": {"parallelism": 2, "completions": 2, "template": template},
    }


TRAIN = {"name": "train", "image": "train:1", "command": ["torchrun", "train.py"]}
PROXY = {"name": "proxy", "image": "proxy:1"}


@pytest.mark.parametrize(
    ("train", "metadata"),
    [
        (TRAIN, {"annotations": {"kubectl.kubernetes.io/default-container": "train"}}),
        ({**TRAIN, "resources": {"limits": {"nvidia.com/gpu": 1}}}, {}),
    ],
)
def test_the_container_that_trains_need_not_be_the_first(
    train: dict[str, Any], metadata: dict[str, Any]
) -> None:
    found = template_of(from_manifest(manifest(PROXY, train, metadata=metadata)))
    images = {one["name"]: one["image"] for one in found["spec"]["containers"]}
    assert images == {"trainer": "train:1", "proxy": "proxy:1"}
    assert found["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "trainer"


def test_a_sidecar_that_is_called_as_the_training_container_is_to_be_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.containers\.1\.name: given 'trainer'"):
        from_manifest(manifest(TRAIN, {**PROXY, "name": "trainer"}))


def test_a_grace_period_becomes_the_runs() -> None:
    given = from_manifest(manifest(TRAIN, terminationGracePeriodSeconds=120))
    assert given.health.grace_seconds == 115.0
    assert template_of(given)["spec"]["terminationGracePeriodSeconds"] == 120
    with pytest.raises(SpecError, match=r"terminationGracePeriodSeconds: given 5"):
        from_manifest(manifest(TRAIN, terminationGracePeriodSeconds=5))


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("podFailurePolicy", {"rules": []}, "restart.exit_codes"),
        ("backoffLimitPerIndex", 3, "restart"),
        ("successPolicy", {"rules": [{"succeededCount": 1}]}, "succeeded when all"),
    ],
)
def test_what_the_run_has_taken_over_of_a_job_is_refused_with_what_to_say(
    field: str, value: object, instead: str
) -> None:
    given = manifest(TRAIN)
    given["spec"][field] = value
    with pytest.raises(SpecError, match=rf"spec\.{field}: .*{instead}"):
        from_manifest(given)


def test_the_page_has_the_list() -> None:
    page = (Path(__file__).parents[5] / "docs/reference/pods.md").read_text()
    assert all(one.what.replace("|", "\\|") in page for one in RESERVED_FIELDS)
