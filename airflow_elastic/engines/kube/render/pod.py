"""The pod of one worker, rendered purely: only the container's name and the index differ between kinds of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.options import KubeOptions, Volume
from airflow_elastic.engines.kube.render.engine_values import with_engine_values
from airflow_elastic.engines.kube.render.names import (
    AGENT,
    ATTEMPT_LABEL,
    DEFAULT_CONTAINER,
    DIGEST_ANNOTATION,
    GROUP_ANNOTATION,
    JOB_LABEL,
    MANAGED_BY,
    MANAGED_LABEL,
    MARGIN_SECONDS,
    QUEUE_LABELS,
    SHARED_MEMORY,
    SHARED_MEMORY_PATH,
    URI_ANNOTATION,
    VOLUME_PREFIX,
)
from airflow_elastic.engines.kube.render.reserved_fields import grace_seconds
from airflow_elastic.engines.kube.render.strategic_merge import overlay
from airflow_elastic.engines.kube.render.tensorboard import sidecar
from airflow_elastic.launchers.api import BY_NAME

__all__ = [
    "ATTEMPT_LABEL",
    "DIGEST_ANNOTATION",
    "GROUP_ANNOTATION",
    "JOB_LABEL",
    "MANAGED_BY",
    "MANAGED_LABEL",
    "MARGIN_SECONDS",
    "URI_ANNOTATION",
    "labels",
    "marked",
    "marks",
    "named",
    "owner_labels",
    "pod_template",
    "queue_labels",
]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def labels(job: Job, options: KubeOptions) -> dict[str, str]:
    """Labels of every object of a job: those that find it, and those of the user."""
    return {
        MANAGED_LABEL: MANAGED_BY,
        **options.labels,
        JOB_LABEL: job.name,
        ATTEMPT_LABEL: str(job.attempt),
    }


def owner_labels(job: Job, options: KubeOptions) -> dict[str, str]:
    """Labels of the object that owns a job: those of all its objects, and those for Kueue."""
    return {**labels(job, options), **queue_labels(options)}


def queue_labels(options: KubeOptions) -> dict[str, str]:
    """The labels for Kueue; empty if no queue of Kueue is named."""
    if options.queueing != "kueue":
        return {}
    queue = {label: getattr(options, option) for label, option in QUEUE_LABELS.items()}
    return {name: value for name, value in queue.items() if value}


def marks(job: Job, options: KubeOptions) -> dict[str, str]:
    """Annotations of every object of a job: its run, so that another run's object of the same name is never adopted."""
    return {**options.annotations, URI_ANNOTATION: job.run_uri, DIGEST_ANNOTATION: job.spec.digest}


def marked(job: Job, options: KubeOptions) -> dict[str, Any]:
    """Metadata of all objects of a job."""
    return {"labels": labels(job, options), "annotations": marks(job, options)}


def named(job: Job, options: KubeOptions) -> dict[str, Any]:
    """Metadata of the objects with the job's name."""
    return {"name": job.name, "namespace": options.namespace, **marked(job, options)}


def pod_template(job: Job, options: KubeOptions, *, container: str, index: dict[str, Any]) -> dict[str, Any]:
    """The template of a job's pods.

    Args:
        job: the attempt.
        options: of its engine.
        container: the name of the training container in this kind of job.
        index: the source of the worker's number, as the `value` or `valueFrom` of an environment variable.
    """
    metadata, volcano = marked(job, options), options.queueing == "volcano"
    metadata["annotations"].setdefault(DEFAULT_CONTAINER, container)
    if volcano:
        metadata["annotations"][GROUP_ANNOTATION] = job.name
    template = {
        "metadata": metadata,
        "spec": _without_nothing(
            {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": grace_seconds(job.spec),
                "containers": [_container(job, options, container, index)],
                "initContainers": [*map(dict, options.init_containers), *_sidecars(job, options, index)],
                "volumes": _volumes(options),
                "nodeSelector": dict(options.node_selector),
                "tolerations": [dict(one) for one in options.tolerations],
                "affinity": _affinity(job, options),
                "priorityClassName": options.priority_class,
                "schedulerName": options.scheduler or ("volcano" if volcano else None),
                "serviceAccountName": options.service_account,
                "imagePullSecrets": [{"name": name} for name in options.image_pull_secrets],
                "hostNetwork": options.host_network or None,
                # Without it a pod on the node's network could not resolve the names of Services.
                "dnsPolicy": "ClusterFirstWithHostNet" if options.host_network else None,
            }
        ),
    }
    over = dict(options.pod_template)
    if "affinity" in (over.get("spec") or {}):  # the template has it already
        over["spec"] = {name: value for name, value in over["spec"].items() if name != "affinity"}
    return with_engine_values(overlay(template, over), template)


def _sidecars(job: Job, options: KubeOptions, index: dict[str, Any]) -> list[dict[str, Any]]:
    board = sidecar(job, options, _env(job, index))
    return [] if board is None else [board]


def _container(job: Job, options: KubeOptions, name: str, index: dict[str, Any]) -> dict[str, Any]:
    resources = dict(job.spec.workers.resources)
    return _without_nothing(
        {
            "name": name,
            "image": options.image,
            "imagePullPolicy": options.image_pull_policy,
            "command": [*options.wrapper, options.python, *BY_NAME, AGENT],
            "workingDir": job.spec.working_dir,
            "env": _env(job, index),
            "envFrom": [dict(one) for one in options.env_from],
            # Requests equal limits, as is required for GPUs: a worker gets what it was promised, and is evicted last.
            "resources": {"requests": resources, "limits": resources} if resources else None,
            "volumeMounts": _mounts(options),
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}} if options.ipc_lock else None,
            # If the agent could not leave a report, the last lines of the log replace it.
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )


def _env(job: Job, index: dict[str, Any]) -> list[dict[str, Any]]:
    def field(path: str) -> dict[str, Any]:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    plain = {
        **job.spec.env,
        "AIRFLOW_ELASTIC_RUN_URI": job.run_uri,
        "AIRFLOW_ELASTIC_ATTEMPT": str(job.attempt),
        "AIRFLOW_ELASTIC_JOB": job.name,
    }
    references = [
        {
            "name": secret.name,
            "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), secret.key.split("/"), strict=True))},
        }
        for secret in job.spec.secrets
        if secret.source == "kubernetes"
    ]
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *references,
        {"name": "AIRFLOW_ELASTIC_INDEX", **index},
        {"name": "AIRFLOW_ELASTIC_POD", **field("metadata.name")},
        {"name": "AIRFLOW_ELASTIC_POD_UID", **field("metadata.uid")},
        {"name": "AIRFLOW_ELASTIC_POD_IP", **field("status.podIP")},
        {"name": "AIRFLOW_ELASTIC_MACHINE", **field("spec.nodeName")},
    ]


def _secret_key(key: str) -> dict[str, str]:
    name, _, part = key.partition("/")
    return {"name": name, "key": part}


def _volumes(options: KubeOptions) -> list[dict[str, Any]]:
    volumes = [
        {"name": f"{VOLUME_PREFIX}volume-{i}", **_source(volume)} for i, volume in enumerate(options.volumes)
    ]
    if options.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": options.shared_memory}
        volumes.append({"name": SHARED_MEMORY, "emptyDir": memory})
    return volumes


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path}}
    return {"emptyDir": {} if volume.empty_dir is True else dict(volume.empty_dir)}


def _mounts(options: KubeOptions) -> list[dict[str, Any]]:
    mounts = [
        _without_nothing(
            {
                "name": f"{VOLUME_PREFIX}volume-{i}",
                "mountPath": volume.mount_path,
                "subPath": volume.sub_path,
                "readOnly": volume.read_only or None,
            }
        )
        for i, volume in enumerate(options.volumes)
    ]
    shared = {"name": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH}
    return [*mounts, *([shared] if options.shared_memory else [])]


def _affinity(job: Job, options: KubeOptions) -> dict[str, Any]:
    """Together on nodes with equal `topology`, not on machines to avoid, and with the user's own terms."""
    over = (options.pod_template.get("spec") or {}).get("affinity") or {}
    laid: dict[str, Any] = overlay(options.affinity, over)
    if options.topology is not None and options.queueing != "native":  # there the gang has it
        term = {"labelSelector": {"matchLabels": {JOB_LABEL: job.name}}, "topologyKey": options.topology}
        terms = [term, *laid.get("podAffinity", {}).get(_REQUIRED, ())]  # all terms must hold
        laid = overlay(laid, {"podAffinity": {_REQUIRED: terms}})
    last_choice = {job.suspect} if job.suspect else set()
    if not job.has_elsewhere:
        last_choice.update(job.avoid)
    if last_choice:
        others = {"weight": 100, "preference": {"matchExpressions": [_none_of(sorted(last_choice))]}}
        liked = [others, *laid.get("nodeAffinity", {}).get(_PREFERRED, ())]
        laid = overlay(laid, {"nodeAffinity": {_PREFERRED: liked}})
    if job.avoid and job.has_elsewhere:
        bad = _none_of(job.avoid)
        required = laid.get("nodeAffinity", {}).get(_REQUIRED, {})
        # Terms are alternatives: each of them must exclude the machines.
        terms = required.get("nodeSelectorTerms") or [{}]
        terms = [{**one, "matchExpressions": [*one.get("matchExpressions", ()), bad]} for one in terms]
        laid = overlay(laid, {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}})
    return laid


def _none_of(machines: Iterable[str]) -> dict[str, Any]:
    return {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(machines)}


def _without_nothing(plain: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty."""
    return {key: value for key, value in plain.items() if value not in (None, [], {})}
