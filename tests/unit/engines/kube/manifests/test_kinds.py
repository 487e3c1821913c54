"""What operators would fill in is filled in, or refused by name; manifests of shapes that their projects publish."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import yaml

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec

Plain = dict[str, Any]


def pytorchjob(
    spec: str = "", container: str = "command: [torchrun, train.py]", master: bool = False
) -> Plain:
    one = "{replicas: %d, template: {spec: {containers: [{name: pytorch, image: i, %s}]}}}"
    replicas = {"Worker": yaml.safe_load(one % (2, container))}
    if master:
        replicas["Master"] = yaml.safe_load(one % (1, container))
    body = {**(yaml.safe_load(spec) or {}), "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "fit"}, "spec": body}


GPUS = "command: [torchrun, train.py], resources: {limits: {nvidia.com/gpu: 8}}"


@pytest.mark.parametrize(
    ("spec", "container", "procs"),
    [
        ("", GPUS, 8),
        ("nprocPerNode: gpu", GPUS, 8),
        ("nprocPerNode: 4", GPUS, 4),
        ("elasticPolicy: {minReplicas: 1, maxReplicas: 4, nProcPerNode: 4}", GPUS, 4),
        ("", GPUS.replace("torchrun,", "torchrun, --nproc_per_node=2,"), 2),
        (
            "",
            "command: [torchrun, --nproc_per_node=$(PET_NPROC_PER_NODE), t.py], resources: {limits: {amd.com/gpu: 2}}",
            2,
        ),
        ("", "command: [torchrun, t.py], env: [{name: PET_NPROC_PER_NODE, value: '4'}]", 4),
        ("", "command: [python, t.py]", 1),
        ("", "command: [accelerate, launch, --num_machines=2, --num_processes=8, t.py]", 4),
        (
            "nprocPerNode: '2'",
            "command: [sh, -c, 'torchrun --nnodes=$PET_NNODES --master_addr=$MASTER_ADDR t.py']",
            2,
        ),
    ],
)
def test_ranks_of_a_worker(spec: str, container: str, procs: int) -> None:
    assert from_manifest(pytorchjob(spec, container)).workers.procs == procs


WORKER = "spec.pytorchReplicaSpecs.Worker"


@pytest.mark.parametrize(
    ("spec", "container", "path"),
    [
        ("", "command: [torchrun, t.py]", "spec.nprocPerNode"),
        ("nprocPerNode: cpu", GPUS, "spec.nprocPerNode"),
        (f"nprocPerNode: '{'9' * 5000}'", GPUS, "spec.nprocPerNode"),  # Python reads no such number
        ("nprocPerNode: 4", "command: [python, t.py]", "spec.nprocPerNode"),
        ("nprocPerNode: 4", "command: [torchrun, --nproc_per_node=2, t.py]", "spec.nprocPerNode"),
        ("{nprocPerNode: 4, elasticPolicy: {nProcPerNode: 2}}", GPUS, "spec.elasticPolicy.nProcPerNode"),
        ("elasticPolicy: {minReplicas: 3, maxReplicas: 4}", GPUS, "spec.elasticPolicy.minReplicas"),
        ("elasticPolicy: {maxReplicas: 4}", GPUS, "spec.elasticPolicy.maxReplicas"),
        (
            "",
            GPUS.replace("torchrun,", "torchrun, --nnodes=4,"),
            f"{WORKER}.template.spec.containers.0.command",
        ),
        ("", GPUS + ", env: [{name: PET_LOG_DIR, value: /l}]", f"{WORKER}.template.spec.containers.0.env.0"),
        (
            "",
            GPUS + ", env: [{name: A, value: x, valueFrom: {}}]",
            f"{WORKER}.template.spec.containers.0.env.0.valueFrom",
        ),
        ("", GPUS + ", imagePullPolicy: Sometimes", f"{WORKER}.template.spec.containers.0.imagePullPolicy"),
        ("", GPUS.replace("8", "-8"), f"{WORKER}.template.spec.containers.0.resources.limits.nvidia.com/gpu"),
    ],
)
def test_refused_by_its_path(spec: str, container: str, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        from_manifest(pytorchjob(spec, container))
    assert path in [problem.path for problem in refused.value.problems]


def test_a_master_alone_or_with_no_workers_is_one_worker() -> None:
    given = pytorchjob(container=GPUS, master=True)
    given["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 0
    assert from_manifest(given).workers.count == 1
    del given["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert from_manifest(given).workers.count == 1


@pytest.mark.parametrize(
    "command", ["[python, t.py]", "[torchrun, --nproc_per_node=2, t.py]", "[torchrun, t.py]"]
)
@pytest.mark.parametrize("given", [-1, 2.5, "many", "$(A)"])
def test_what_is_no_number_of_ranks_is_refused_whatever_the_command(command: str, given: Any) -> None:
    manifest = pytorchjob(container=f"command: {command}")
    manifest["spec"]["nprocPerNode"] = given
    with pytest.raises(SpecError) as caught:
        from_manifest(manifest)
    assert [one.path for one in caught.value.problems] == ["spec.nprocPerNode"]
    assert "a number of ranks" in caught.value.problems[0].allowed


@pytest.mark.parametrize(("field", "given"), [("later", 1), ("enableServiceLinks", False)])
def test_a_master_that_differs_is_refused_where_it_does(field: str, given: Any) -> None:
    manifest = pytorchjob(container=GPUS, master=True)
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    replicas["Master"]["template"]["spec"][field] = True
    replicas["Worker"]["template"]["spec"][field] = given
    with pytest.raises(SpecError, match=rf"they differ in spec\.{field}\)"):
        from_manifest(manifest)


@pytest.mark.parametrize("field", ["enableServiceLinks", "hostPID", "shareProcessNamespace"])
def test_what_is_true_or_false_is_no_number(field: str) -> None:
    manifest = pytorchjob(container=GPUS)
    manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"][field] = 1
    with pytest.raises(SpecError, match=rf"spec\.{field}: given 1; allowed: true or false, without quotes"):
        from_manifest(manifest)


def test_a_variable_given_twice_stays_so() -> None:
    env = (
        "env: [{name: A, value: x}, {name: B, value: $(A)}, {name: A, valueFrom: {fieldRef: {fieldPath: m}}}]"
    )
    spec = from_manifest(pytorchjob(container=f"command: [python, t.py], {env}"))
    wanted = yaml.safe_load(f"{{{env}}}")["env"]
    assert [one for one in variables(spec) if one["name"] in "AB"] == wanted


def variables(spec: RunSpec) -> list[Plain]:
    job = find_engine(spec.engine).render(Job("s3://b/run", spec, 1, spec.workers.count))["items"][0]
    found: list[Plain] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0][
        "env"
    ]
    return found


RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch-distributed}
spec:
  mlPolicy: {numNodes: 3, torch: {numProcPerNode: auto}}
  template:
    spec:
      replicatedJobs:
      - name: dataset
        template: {spec: {template: {spec: {containers: [{name: dataset, image: d}]}}}}
      - name: node
        template:
          spec:
            template:
              spec:
                containers:
                - name: node
                  image: pytorch:2
                  command: [torchrun, --nnodes=$(PET_NNODES), train.py]
                  args: [--data, $(DATA)]
                  env: [{name: DATA, value: /data}]
                  resources: {limits: {nvidia.com/gpu: 2}}
"""


def trainjob(trainer: str = "{}") -> Plain:
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": yaml.safe_load(trainer)}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "fit"},
        "spec": spec,
    }


def with_runtime(job: Plain) -> RunSpec:
    return from_manifest({"kind": "List", "items": [job, yaml.safe_load(RUNTIME)]})


def test_a_trainjob_takes_what_it_does_not_say_from_its_runtime() -> None:
    spec = with_runtime(trainjob())
    assert (spec.workers.count, spec.workers.procs, spec.launcher) == (3, 2, "torchrun")
    assert spec.command == ("train.py", "--data", "/data")
    assert spec.engine_options["image"] == "pytorch:2"
    items = find_engine(spec.engine).render(Job("s3://b/run", spec, 1, 3))["items"]
    assert [item["kind"] for item in items] == ["TrainJob"]
    assert items[0]["spec"]["runtimeRef"]["name"] == "torch-distributed"
    own = with_runtime(trainjob("{numNodes: 2, image: mine, args: [--x], numProcPerNode: 1}"))
    assert (own.workers.count, own.workers.procs, own.command) == (2, 1, ("train.py", "--x"))
    assert own.engine_options["image"] == "mine"


@pytest.mark.parametrize("metadata", [["torch-distributed"], "torch-distributed", {"name": ["x"]}, None])
def test_an_object_beside_it_may_have_any_shape(metadata: Any) -> None:
    other = {"kind": "ClusterTrainingRuntime", "metadata": metadata}
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}
    with pytest.raises(SpecError, match="kubectl get clustertrainingruntime torch-distributed -o yaml"):
        from_manifest({"kind": "List", "items": [trainjob(), other, group]})
    own = trainjob("{image: i, command: [torchrun, t.py], numProcPerNode: 2}")
    assert from_manifest({"kind": "List", "items": [own, other, group]}).workers.procs == 2


def test_gpus_that_a_runtime_asks_for_without_a_limit() -> None:
    runtime = yaml.safe_load(RUNTIME.replace("limits: {nv", "limits: {cpu: 8}, requests: {nv"))
    assert from_manifest({"kind": "List", "items": [trainjob(), runtime]}).workers.procs == 2


def test_a_trainjob_without_its_runtime_says_what_to_do() -> None:
    with pytest.raises(
        SpecError, match="kubectl get clustertrainingruntime torch-distributed -o yaml"
    ) as refused:
        from_manifest(trainjob("{numNodes: 2}"))
    assert [one.path for one in refused.value.problems] == ["spec.trainer.image", "spec.trainer.command"]
    with pytest.raises(SpecError, match="the runtime's are not known here") as refused:
        from_manifest(trainjob("{image: i, command: [torchrun, t.py]}"))
    assert refused.value.problems[0].path == "spec.trainer.numProcPerNode"


@pytest.mark.parametrize(
    ("resources", "procs"),
    [("{limits: {nvidia.com/gpu: 4}}", 4), ("{requests: {cpu: 2500m}}", 3), ("{limits: {cpu: 2}}", 2)],
)
def test_ranks_as_trainer_counts_them(resources: str, procs: int) -> None:
    spec = from_manifest(trainjob(f"{{image: i, command: [torchrun, t.py], resourcesPerNode: {resources}}}"))
    assert spec.workers.procs == procs


def test_an_elasticjob_as_dlrover_publishes_them() -> None:
    line = (
        "(bash chaos.sh cpu-overload &)\n && dlrover-run --network-check --exclude-straggler --nnodes=2:$WORKER_NUM "
        "--nproc_per_node=2 --max_restarts=3 --rdzv_conf pend=600 cnn.py --steps $((WORKER_NUM * 2)) --data '/d/'"
    )
    container = {"name": "main", "image": "d:1", "command": ["/bin/bash", "-c", line]}
    worker = {
        "replicas": 4,
        "restartCount": 1,
        "template": {"spec": {"restartPolicy": "Always", "containers": [container]}},
    }
    spec = from_manifest(
        {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": "chaos"},
            "spec": {"optimizeMode": "single-job", "replicaSpecs": {"worker": worker}},
        }
    )
    assert (spec.launcher, spec.workers.count, spec.workers.min, spec.workers.procs) == (
        "dlrover-run",
        4,
        2,
        2,
    )
    assert spec.command == ("cnn.py", "--steps", "8", "--data", "/d/")
    assert list(spec.engine_options["wrapper"])[2] == '(bash chaos.sh cpu-overload &)\n && exec "$@"'


def test_what_a_cluster_has_added_to_a_job() -> None:
    uid = {"batch.kubernetes.io/controller-uid": "1", "job-name": "fit"}
    pod = {
        "metadata": {"labels": {"app": "a", **uid}},
        "spec": {"containers": [{"name": "t", "image": "i", "command": ["python", "t.py"]}]},
    }
    spec = from_manifest(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "fit", "labels": uid, "uid": "1", "annotations": {"x": None}},
            "spec": {
                "template": pod,
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "1"}},
                "suspend": False,
                "podReplacementPolicy": "TerminatingOrFailed",
            },
        }
    )
    assert spec.engine_options["pod_template"]["metadata"]["labels"] == {"app": "a"}
    assert spec.engine_options["annotations"] == {"x": ""}


@pytest.mark.parametrize("value", [datetime.date(2026, 1, 1), {1}, b"x", float("nan"), object])
def test_options_are_what_json_has(value: Any) -> None:
    with pytest.raises(
        SpecError, match=r"engine_options\.pod_template\.a\.0: given .*; allowed: a JSON value"
    ):
        RunSpec(("t.py",), engine="job", engine_options={"image": "i", "pod_template": {"a": [value]}})
    with pytest.raises(SpecError, match=r"engine_options\.labels\.1: given 1"):
        RunSpec(("t.py",), engine="job", engine_options={"labels": {1: "a"}})


def test_what_a_manifest_leaves_out_is_as_the_documentation_says() -> None:
    """docs/reference/manifests.md, "What is left out"."""
    pod = {"spec": {"containers": [{"name": "main", "image": "i", "command": ["python", "t.py"]}]}}
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "fit"}}
    job = from_manifest({**head, "spec": {"template": pod}})
    spec = {"pytorchReplicaSpecs": {"Worker": {"template": pod}}}
    theirs = from_manifest(
        {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "fit"}, "spec": spec}
    )
    for run in (job, theirs):
        assert (run.workers.count, run.restart.policy, run.restart.backoff_limit) == (1, "OnFailure", 6)
        assert (run.cleanup, run.active_deadline_seconds) == ("Unfinished", None)
        assert run.health.grace_seconds == 30
    body = find_engine("job").render(Job("s3://b/run", job, 1, 1))["items"][0]
    assert body["spec"]["ttlSecondsAfterFinished"] == 24 * 3600
