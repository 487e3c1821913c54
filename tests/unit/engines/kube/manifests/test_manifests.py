"""Manifests of all kinds become runs, and what they say is found again in what we render."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.manifests import from_manifest
from airflow_elastic.launchers import find_launcher
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.run import RunSpec

Plain = dict[str, Any]


def pod(*command: str, name: str = "pytorch", **changes: Any) -> Plain:
    """A template that says as much as people say."""
    container = {
        "name": name,
        "image": "registry/trainer:2",
        "imagePullPolicy": "Always",
        "command": list(command or ("python", "-u", "train.py")),
        "args": ["--lr", "0.1"],
        "workingDir": "/app",
        "env": [
            {"name": "NCCL_DEBUG", "value": "INFO"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "resources": {
            "limits": {"nvidia.com/gpu": 4, "memory": "8Gi"},
            "requests": {"memory": "8Gi", "nvidia.com/gpu": 4},
        },
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "ports": [{"containerPort": 9090}],
    }
    return {
        "metadata": {"labels": {"app": "digits"}, "annotations": {"sidecar.istio.io/inject": "false"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{**container, **changes}, {"name": "proxy", "image": "proxy:1"}],
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
            "nodeSelector": {"gpu": "a100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "serviceAccountName": "trainer",
            "priorityClassName": "high",
            "hostNetwork": True,
        },
    }


def manifest(api: str, kind: str, spec: Plain) -> Plain:
    metadata = {
        "name": "digits",
        "namespace": "ml",
        "labels": {"team": "a"},
        "uid": "1",
        "annotations": {"cost": "b"},
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec, "status": {"phase": "Old"}}


def job(*command: str, **changes: Any) -> Plain:
    spec = {
        "completionMode": "Indexed",
        "parallelism": 2,
        "completions": 2,
        "backoffLimit": 4,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 60,
        "template": pod(*command, name="any"),
    }
    return manifest("batch/v1", "Job", {**spec, **changes})


def pytorchjob(*command: str, master: bool = False, **changes: Any) -> Plain:
    replicas = {"Worker": {"replicas": 2, "restartPolicy": "ExitCode", "template": pod(*command)}}
    if master:
        replicas["Master"] = {**copy.deepcopy(replicas["Worker"]), "replicas": 1}
    spec = {
        "pytorchReplicaSpecs": replicas,
        "nprocPerNode": "auto",
        "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d", "maxRestarts": 100},
        "runPolicy": {
            "cleanPodPolicy": "All",
            "ttlSecondsAfterFinished": 60,
            "activeDeadlineSeconds": 3600,
            "backoffLimit": 3,
            "schedulingPolicy": {"minAvailable": 2},
        },
    }
    return manifest("kubeflow.org/v1", "PyTorchJob", {**spec, **changes})


def trainjob(**changes: Any) -> Plain:
    trainer = {
        "numNodes": 2,
        "numProcPerNode": 4,
        "image": "registry/trainer:2",
        "command": ["torchrun", "train.py"],
        "args": ["--lr", "0.1"],
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}, "requests": {"nvidia.com/gpu": 4}},
    }
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer, "labels": {"queue": "q"}}
    return manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {**spec, **changes})


def elasticjob() -> Plain:
    template = pod(
        "dlrover-run", "--nnodes=1:4", "--nproc_per_node=4", "--precheck", "1", "train.py", name="main"
    )
    del template["spec"]["priorityClassName"]
    master = {
        "spec": {"containers": [{"name": "main", "image": "dlrover:1"}], "nodeSelector": {"cpu": "yes"}}
    }
    worker = {"replicas": 2, "restartCount": 5, "autoScale": True, "priority": "high", "template": template}
    spec = {
        "distributionStrategy": "AllreduceStrategy",
        "optimizeMode": "single-job",
        "enableElasticScheduling": True,
    }
    replicas = {"worker": worker, "dlrover-master": {"template": master}}
    return manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", {**spec, "replicaSpecs": replicas})


def trainingjob() -> Plain:
    template = pod(name="python", command=["python"], args=["train.py", "--lr", "0.1"])
    return manifest(
        "batch.tensorstack.dev/v1beta1",
        "PyTorchTrainingJob",
        {
            "replicaSpecs": [
                {"type": "worker", "replicas": 2, "restartPolicy": "OnFailure", "template": template}
            ],
            "torchrunConfig": {
                "enabled": True,
                "maxRestarts": 3,
                "procPerNode": "gpu",
                "rdzvBackend": "etcd",
            },
            "elastic": {"enabled": True, "minReplicas": 1, "maxReplicas": 4, "expectedReplicas": 2},
            "runPolicy": {"cleanUpPolicy": "Unfinished", "activeDeadlineSeconds": 3600},
            "scheduler": {"t9kScheduler": {"queue": "team", "priority": 7}},
            "tensorboardSpec": {"image": "tb:1", "trainingLogFilesets": ["t9k://pvc/logs"]},
        },
    )


WITH_PODS = {
    "Job": job,
    "PyTorchJob": pytorchjob,
    "PyTorchJob with a Master": lambda: pytorchjob(master=True),
    "ElasticJob": elasticjob,
    "PyTorchTrainingJob": trainingjob,
}


def rendered(spec: RunSpec) -> list[Plain]:
    find_launcher(spec.launcher).refuse(spec)
    engine = find_engine(spec.engine)
    engine.check(spec)
    items = engine.render(Job("s3://bucket/run", spec, 1, spec.workers.count))["items"]
    return list(items)


def pods_in(found: Any) -> Iterator[Plain]:
    if isinstance(found, dict):
        if "containers" in found.get("spec", {}):
            yield found
        for value in found.values():
            yield from pods_in(value)
    elif isinstance(found, list):
        for value in found:
            yield from pods_in(value)


def says(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; more may be. Of named items, by name."""
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(says(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list) and all(isinstance(one, dict) for one in wanted):
        return all(any(says(one, item) for one in found or ()) for item in wanted)
    return str(found) == str(wanted)


@pytest.mark.parametrize("make", WITH_PODS.values(), ids=WITH_PODS)
def test_what_a_pod_says_is_in_what_we_render(make: Any) -> None:
    given = make()
    theirs = max(pods_in(given), key=lambda one: len(str(one)))
    del theirs["spec"]["restartPolicy"]  # the run's
    for key in ("command", "args", "name"):  # the agent's; the run's command is checked below
        theirs["spec"]["containers"][0].pop(key, None)
    spec = from_manifest(make())
    ours = max(pods_in(rendered(spec)), key=lambda one: len(str(one)))
    assert says(ours, {"metadata": theirs["metadata"]})
    folder = theirs["spec"]["containers"][0].pop("workingDir")
    assert spec.working_dir == folder
    for key, value in theirs["spec"].items():
        assert says(ours["spec"], {key: value}), key
    assert spec.command == ("train.py", "--lr", "0.1")


@pytest.mark.parametrize("make", [*WITH_PODS.values(), trainjob], ids=[*WITH_PODS, "TrainJob"])
def test_names_and_labels_are_kept(make: Any) -> None:
    owner = rendered(from_manifest(make()))[-1 if make is trainjob else 0]
    assert owner["metadata"]["name"].startswith("digits-")
    assert owner["metadata"]["namespace"] == "ml"
    assert owner["metadata"]["labels"]["team"] == "a"
    assert owner["metadata"]["annotations"]["cost"] == "b"
    assert owner["kind"] == make()["kind"]


@pytest.mark.parametrize("make", [job, pytorchjob, trainjob, elasticjob, trainingjob])
def test_a_variable_with_a_field_that_we_do_not_know_stays_as_it_is(make: Any) -> None:
    given = make()
    odd = {"name": "FROM_LATER", "valueFromLater": {"key": "k"}}
    containers = [template["spec"]["containers"][0] for template in pods_in(given)]
    for one in containers or [given["spec"]["trainer"]]:
        one.setdefault("env", []).append(odd)
    assert str(odd) in str(rendered(from_manifest(given)))


@pytest.mark.parametrize("make", WITH_PODS.values(), ids=[*WITH_PODS])
def test_a_container_for_debugging_is_refused_in_a_template(make: Any) -> None:
    given = make()
    for template in pods_in(given):
        template["spec"]["ephemeralContainers"] = [{"name": "shell", "image": "busybox"}]
    with pytest.raises(SpecError) as caught:
        from_manifest(given)
    told = [str(one) for one in caught.value.problems]
    assert len(told) == len([*pods_in(given)])
    for one in told:
        assert "template.spec.ephemeralContainers: given 1; allowed: none: kubectl debug adds them" in one


@pytest.mark.parametrize("words", [{}, {"command": []}, {"command": None, "args": []}])
def test_a_job_master_without_a_command_has_ours(words: Plain) -> None:
    given = elasticjob()
    given["spec"]["replicaSpecs"]["dlrover-master"]["template"]["spec"]["containers"][0] |= words
    replicas = rendered(from_manifest(given))[0]["spec"]["replicaSpecs"]
    main = replicas["dlrover-master"]["template"]["spec"]["containers"][0]
    assert main["command"][:3] == ["python", "-m", "dlrover.python.master.main"]
    assert not main.get("args")


def test_a_job_master_has_the_resources_of_its_manifest_alone() -> None:
    given = elasticjob()
    asked = {"limits": {"cpu": "500m", "memory": "1Gi"}}
    given["spec"]["replicaSpecs"]["dlrover-master"]["template"]["spec"]["containers"][0]["resources"] = asked
    replicas = rendered(from_manifest(given))[0]["spec"]["replicaSpecs"]
    assert replicas["dlrover-master"]["template"]["spec"]["containers"][0]["resources"] == asked


@pytest.mark.parametrize("kind", ["dlrover-master", "ps"])
def test_pods_beside_the_workers_have_nothing_of_theirs(kind: str) -> None:
    given = elasticjob()
    given["spec"]["distributionStrategy"] = "ParameterServerStrategy"
    beside = {"containers": [{"name": "main", "image": "dlrover:1"}], "nodeSelector": {"cpu": "yes"}}
    served = {
        "containers": [{**beside["containers"][0], "command": ["serve"]}],
        "nodeSelector": {"cpu": "yes"},
    }
    given["spec"]["replicaSpecs"] |= {"dlrover-master": {"template": {"spec": beside}}}
    given["spec"]["replicaSpecs"] |= {"ps": {"replicas": 1, "template": {"spec": served}}}
    spec = RunSpec.from_dict(json.loads(json.dumps(from_manifest(given).to_dict())))
    found = rendered(spec)[0]["spec"]["replicaSpecs"][kind]["template"]["spec"]
    assert found["nodeSelector"] == {"cpu": "yes"}, "with the workers' as well it would fit no node"
    assert found.keys() == {"containers", "nodeSelector", "restartPolicy"}
    assert "imagePullPolicy" not in found["containers"][0]


def test_there_is_one_job_master() -> None:
    given = elasticjob()
    given["spec"]["replicaSpecs"]["dlrover-master"]["replicas"] = 1
    assert "replicas" not in rendered(from_manifest(given))[0]["spec"]["replicaSpecs"]["dlrover-master"]
    given["spec"]["replicaSpecs"]["dlrover-master"]["replicas"] = 2
    with pytest.raises(SpecError) as caught:
        from_manifest(given)
    assert [str(one) for one in caught.value.problems] == [
        "spec.replicaSpecs.dlrover-master.replicas: given 2; allowed: 1: a job has one master"
    ]


def test_the_label_of_a_queue_becomes_the_queue() -> None:
    manifest = job()
    manifest["metadata"]["labels"] |= {
        "kueue.x-k8s.io/queue-name": "team",
        "kueue.x-k8s.io/priority-class": "high",
    }
    spec = from_manifest(manifest)
    assert (spec.engine_options["queue"], spec.engine_options["queue_priority"]) == ("team", "high")
    assert manifest["metadata"]["labels"].items() <= rendered(spec)[0]["metadata"]["labels"].items()


def test_a_job() -> None:
    spec = from_manifest(job())
    assert (spec.engine, spec.launcher, spec.workers.count) == ("job", "python", 2)
    assert (spec.restart.backoff_limit, spec.active_deadline_seconds) == (4, 3600)
    assert rendered(spec)[0]["spec"]["ttlSecondsAfterFinished"] == 60


def test_a_pytorchjob() -> None:
    spec = from_manifest(pytorchjob("torchrun", "--nproc-per-node=gpu", "--rdzv-backend", "c10d", "train.py"))
    assert (spec.engine, spec.launcher, spec.command) == (
        "pytorchjob",
        "torchrun",
        ("train.py", "--lr", "0.1"),
    )
    workers = spec.workers
    assert (workers.count, workers.min, workers.max, workers.procs) == (2, 1, 4, 4)
    assert (spec.restart.policy, spec.restart.backoff_limit, spec.cleanup) == ("ExitCode", 3, "All")
    body = rendered(spec)[0]["spec"]
    elastic = {"minReplicas": 1, "maxReplicas": 4, "rdzvBackend": "c10d", "maxRestarts": 100}
    assert says(body, {"elasticPolicy": elastic, "runPolicy": {"schedulingPolicy": {"minAvailable": 2}}})


def test_a_master_is_one_of_the_workers() -> None:
    spec = from_manifest(pytorchjob(master=True))
    assert (spec.workers.count, spec.workers.min, spec.workers.max) == (3, 2, 5)
    assert rendered(spec)[0]["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] == 1


def test_a_trainjob() -> None:
    spec = from_manifest(trainjob())
    assert (spec.engine, spec.launcher, spec.workers.count, spec.workers.procs) == (
        "trainjob",
        "torchrun",
        2,
        4,
    )
    assert spec.engine_options["runtime"]["name"] == "torch-distributed"
    trainer = rendered(spec)[-1]["spec"]["trainer"]
    assert trainer["image"] == "registry/trainer:2"
    assert says(trainer["env"], [{"name": "NCCL_DEBUG", "value": "INFO"}])


def test_an_elasticjob() -> None:
    spec = from_manifest(elasticjob())
    assert (spec.launcher, spec.launcher_options) == ("dlrover-run", {"precheck": 1})
    assert (spec.workers.count, spec.workers.max, spec.workers.procs) == (2, 4, 4)
    body = rendered(spec)[0]["spec"]
    assert says(body, {"optimizeMode": "single-job", "enableElasticScheduling": True})
    assert says(body["replicaSpecs"]["worker"], {"autoScale": True, "priority": "high"})
    master = body["replicaSpecs"]["dlrover-master"]["template"]["spec"]
    assert (master["containers"][0]["image"], master["nodeSelector"]["cpu"]) == ("dlrover:1", "yes")


def test_a_pytorchtrainingjob() -> None:
    spec = from_manifest(trainingjob())
    assert (spec.launcher, spec.workers.procs, spec.restart.backoff_limit) == ("torchrun", 4, 3)
    body = rendered(spec)[0]["spec"]
    elastic = {"enabled": True, "minReplicas": 1, "maxReplicas": 4, "expectedReplicas": 2}
    assert says(body, {"elastic": elastic, "scheduler": {"t9kScheduler": {"queue": "team", "priority": 7}}})
    assert says(body, {"tensorboardSpec": {"image": "tb:1"}, "torchrunConfig": {"rdzvBackend": "etcd"}})


@pytest.mark.parametrize(
    ("words", "launcher", "command"),
    [
        (["python3", "-m", "pkg.train"], "python", ("-m", "pkg.train")),
        (["/opt/py/bin/python", "train.py"], "python", ("train.py",)),
        (["python", "-O", "train.py"], "python", ("python", "-O", "train.py")),
        (["./train", "--fast"], "python", ("./train", "--fast")),
        (["bash", "-c", "make data && ./train"], "python", ("bash", "-c", "make data && ./train")),
        (["torchrun", "--standalone", "-m", "pkg"], "torchrun", ("-m", "pkg")),
        (["python", "-m", "torch.distributed.run", "--nnodes", "2", "t.py"], "torchrun", ("t.py",)),
        (["accelerate", "launch", "--num_machines=2", "--multi_gpu", "t.py"], "accelerate", ("t.py",)),
    ],
)
def test_commands_are_understood(words: list[str], launcher: str, command: tuple[str, ...]) -> None:
    spec = from_manifest(job(*words))
    assert (spec.launcher, spec.command) == (launcher, (*command, "--lr", "0.1"))


def changed(path: str, value: Any, make: Any = pytorchjob) -> Plain:
    whole = make()
    *parents, last = path.split(".")
    part = whole
    for key in parents:
        part = part[int(key)] if isinstance(part, list) else part.setdefault(key, {})
    part[last] = value
    return dict(whole)


WORKER = "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (job(podFailurePolicy={"rules": []}), "spec.podFailurePolicy"),
        (job(suspend=True), "spec.suspend"),
        (job(completions=5), "spec.completions"),
        (job("torchrun", "--log-dir=/l", "t.py"), "spec.template.spec.containers.0.command"),
        (job("sh", "-c", "torchrun t.py"), "spec.template.spec.containers.0.command"),
        (job("mpirun", "t"), "spec.template.spec.containers.0.command"),
        (job("python", "t.py", "$(TOKEN)"), "spec.template.spec.containers.0.command"),
        (job("torchrun", "--nproc-per-node=cpu", "t.py"), "spec.template.spec.containers.0.command"),
        (changed(f"{WORKER}.command", []), f"{WORKER}.command"),
        (changed("spec.pytorchReplicaSpecs.Launcher", {"replicas": 1}), "spec.pytorchReplicaSpecs.Launcher"),
        (changed("metadata.finalizers", ["x"]), "metadata.finalizers"),
        (trainjob(initializer={"dataset": {}}), "spec.initializer"),
        (trainjob(runtimePatches=[{}]), "spec.runtimePatches"),
        (changed("spec.runMode", {"pause": {"enabled": True}}, trainingjob), "spec.runMode"),
        ({"apiVersion": "v1", "kind": "Pod"}, "kind"),
    ],
)
def test_what_cannot_be_kept_is_refused(given: Plain, path: str) -> None:
    with pytest.raises(SpecError) as refused:
        from_manifest(given)
    assert [problem.path for problem in refused.value.problems] == [path]


def test_masters_that_differ_are_refused() -> None:
    given = pytorchjob(master=True)
    given["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    with pytest.raises(SpecError, match="all workers of a run are alike"):
        from_manifest(given)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job()))
    assert from_manifest(str(file)) == from_manifest(job())
    file.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(InvalidInput, match="2 documents"):
        from_manifest(file)
    with pytest.raises(InvalidInput, match="name a YAML file"):
        from_manifest(tmp_path / "none.yaml")
