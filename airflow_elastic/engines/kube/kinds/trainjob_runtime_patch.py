"""A pod as patches of an existing runtime: `spec.trainer` and `runtimePatches` of a TrainJob."""

from __future__ import annotations

from typing import Any

from airflow_elastic.engines.kube.render.tensorboard import CONTAINER
from airflow_elastic.spec.errors import Problem

_MANAGER = "airflow-elastic.io/engine"

#: The fields of pods and containers that patches may set, by the schema of Trainer 2.3.
_POD = (
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "schedulingGates",
    "securityContext",
    "serviceAccountName",
    "terminationGracePeriodSeconds",
    "tolerations",
    "volumes",
)
_CONTAINER = ("name", "securityContext", "volumeMounts")

#: Fields of `spec.trainer`, by the container's own fields.
_TRAINER = ("image", "command", "args", "env", "resources")

#: Fields that we write by default. The runtime's own values are used instead, and our agent works with them.
_INDIFFERENT = ("restartPolicy", "terminationMessagePolicy")

#: The field that the other options belong to.
_OPTIONS = {
    "dnsPolicy": "engine_options.host_network",
    "envFrom": "engine_options.env_from",
    "hostNetwork": "engine_options.host_network",
    "imagePullPolicy": "engine_options.image_pull_policy",
    "initContainers": "engine_options.init_containers",
    "priorityClassName": "engine_options.priority_class",
    "schedulerName": "engine_options.scheduler",
    "workingDir": "working_dir",
}

_RESERVED = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")


def patched(template: dict[str, Any], metadata: dict[str, Any], node: str) -> dict[str, Any]:
    """`trainer` and `runtimePatches` of a TrainJob, so that its pods become like this template.

    Args:
        template: of the pods.
        metadata: labels and annotations of the child Job, by which it is found.
        node: name of the replicated job, and of its container.
    """
    pod, container = template["spec"], _trainer_of(template)
    trainer = {field: container[field] for field in _TRAINER if field in container}
    if "resources" in trainer:
        trainer["resourcesPerNode"] = trainer.pop("resources")
    shape = {field: pod[field] for field in _POD if field in pod}
    inner = {field: container[field] for field in _CONTAINER if field in container}
    if len(inner) > 1:
        shape["containers"] = [inner]
    child = {
        "metadata": metadata,
        "spec": {"template": {"metadata": template["metadata"], "spec": shape}},
    }
    spec = {"template": {"spec": {"replicatedJobs": [{"name": node, "template": child}]}}}
    return {"trainer": trainer, "runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": spec}]}


def beyond_patches(template: dict[str, Any], runtime: str) -> list[Problem]:
    """The parts of this template that no patch can carry."""
    pod, container = template["spec"], _trainer_of(template)
    fields = [field for field in pod if field not in (*_POD, *_INDIFFERENT, "containers")]
    fields += [field for field in container if field not in (*_CONTAINER, *_TRAINER, *_INDIFFERENT)]
    fields += ["containers"] if len(pod["containers"]) > 1 else []
    allowed = f"unset: a TrainJob cannot give it to the runtime {runtime}; put it there, or use no `runtime`"
    named = dict(_OPTIONS)
    if all(one["name"] == CONTAINER for one in pod.get("initContainers", ())):
        named["initContainers"] = "engine_options.tensorboard"
    problems = [
        Problem(named.get(field, f"engine_options.pod_template.spec.{field}"), "given", allowed)
        for field in dict.fromkeys(fields)
    ]
    return problems + [
        Problem(f"env.{one['name']}", one.get("value"), "another name: Trainer sets this one itself")
        for one in container.get("env", ())
        if one["name"] in _RESERVED
    ]


def _trainer_of(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["containers"][0]
    return found
