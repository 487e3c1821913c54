"""`engine_options` of the cluster engines: the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_elastic.adapters.kube import Access
from airflow_elastic.core.event_sentences import BOARD_PORT
from airflow_elastic.engines.kube.render.names import DISRUPTION_MODES, QUEUE_LABELS
from airflow_elastic.engines.quantities import ALLOWED, is_quantity
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.validation import Checks, choice, int32

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_QUEUEING = ("kueue", "volcano", "native")
_SOURCES = ("claim", "secret", "config_map", "host_path", "empty_dir")

#: What a TensorBoard may take for granted. Without TensorFlow it has some 110 MB; what it shows comes on top.
_RESOURCES = {"cpu": "10m", "memory": "256Mi"}


@dataclass(frozen=True, slots=True)
class Volume:
    """Something mounted into every worker. Exactly one of the sources.

    Attributes:
        mount_path: the path in the container.
        claim: name of a PersistentVolumeClaim.
        secret: name of a Secret.
        config_map: name of a ConfigMap.
        host_path: path on the node.
        empty_dir: True for a folder that exists as long as the pod; or a mapping, e.g. `{"sizeLimit": "10Gi"}`.
        sub_path: a folder within the volume.
        read_only: whether workers must not write there.
    """

    mount_path: str
    claim: str | None = None
    secret: str | None = None
    config_map: str | None = None
    host_path: str | None = None
    empty_dir: Any = None
    sub_path: str | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        with Checks() as check:
            check.that(self.mount_path.startswith("/"), "mount_path", self.mount_path, "an absolute path")
            given = [name for name in _SOURCES if getattr(self, name) is not None]
            check.that(len(given) == 1, "claim", given or None, f"exactly one of {', '.join(_SOURCES)}")
            good = self.empty_dir is None or self.empty_dir is True or isinstance(self.empty_dir, Mapping)
            check.that(good, "empty_dir", self.empty_dir, "true, or a mapping such as {sizeLimit: 10Gi}")


@dataclass(frozen=True, slots=True)
class TensorBoard:
    """A TensorBoard beside the workers. With `tensorboard: true` of the run, it shows the run's event files.

    Attributes:
        image: with TensorBoard; for a run on S3 also with boto3. Default: the workers' own.
        port: in the pod.
        resources: that each worker's pod requests for it, in Kubernetes' form. Default: cpu 10m, memory 256Mi.
    """

    #: Whether it is a container of the workers' pods, and no pod of a platform.
    is_sidecar: ClassVar[bool] = True

    image: str | None = None
    port: int = BOARD_PORT
    resources: Mapping[str, str] = field(default_factory=lambda: dict(_RESOURCES))

    def __post_init__(self) -> None:
        with Checks() as check:
            check.that(1024 <= self.port <= 65535, "port", self.port, "an integer from 1024 to 65535")
            for name, value in self.resources.items():
                check.that(is_quantity(value), f"resources.{name}", value, ALLOWED)


@dataclass(frozen=True, slots=True)
class KubeOptions:
    """Options for workers as pods.

    Attributes:
        image: of the workers; it contains the script, torch and airflow-elastic[runtime].
        namespace: of all objects.
        kubeconfig: path of a kubeconfig. Default: `KUBECONFIG`, else `~/.kube/config`, else the pod's own account.
        context: of the kubeconfig. Default: its current one.
        python: the interpreter in the image.
        wrapper: a command before each worker's agent, as words of a container's command. Examples: `[uv, run]`,
            `[numactl, --interleave=all]`. It must start the command after it, pass SIGTERM on, and end with its exit
            code.
        image_pull_policy: Always, IfNotPresent or Never. Default: Kubernetes' own.
        image_pull_secrets: names of Secrets.
        service_account: of the pods.
        node_selector: labels that a node must have.
        tolerations: in Kubernetes' form.
        affinity: in Kubernetes' form.
        topology: a node label, e.g. `topology.kubernetes.io/zone`: all workers of an attempt are placed on nodes with
            an equal value.
        priority_class: name of a PriorityClass.
        scheduler: name of the scheduler. Default: the cluster's; with `queueing: volcano`, volcano.
        queueing: the system that admits the workers. `kueue`: by a queue. `volcano`: as a gang, also without a queue.
            `native`: as a gang of Kubernetes itself, without a queue (Kubernetes 1.37, engine `job`).
        queue: name of a queue, where the job waits until it is admitted: a LocalQueue of Kueue, or a Queue of Volcano.
        queue_priority: name of a WorkloadPriorityClass of Kueue.
        disruption_mode: what preemption takes from a gang of Kubernetes: `all` workers, or `single` ones. Default:
            single if fewer workers can train, else all.
        shared_memory: size of /dev/shm, e.g. `8Gi`; it counts as memory. Default: 64 MiB, little for data loaders and
            NCCL.
        host_network: use the node's network, e.g. for RDMA.
        ipc_lock: allow locking of memory, which RDMA needs.
        volumes: volumes to mount.
        init_containers: in Kubernetes' form, run before each worker.
        env_from: in Kubernetes' form: ConfigMaps and Secrets whose keys become variables.
        labels: further labels of every object.
        annotations: further annotations of every object.
        pod_template: merged into the pod last, as a strategic merge patch, for everything that has no option here.
        tensorboard: a TensorBoard beside the workers, for a run with `tensorboard: true`: `{}`, or a mapping.
        ttl_seconds: the cluster removes the rest of a finished job after so long.
    """

    image: str | None = None
    namespace: str = "default"
    kubeconfig: str | None = None
    context: str | None = None
    python: str = "python"
    wrapper: tuple[str, ...] = ()
    image_pull_policy: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    topology: str | None = None
    priority_class: str | None = None
    scheduler: str | None = None
    queueing: str = "kueue"
    queue: str | None = None
    queue_priority: str | None = None
    disruption_mode: str | None = None
    shared_memory: str | None = None
    host_network: bool = False
    ipc_lock: bool = False
    volumes: tuple[Volume, ...] = ()
    init_containers: tuple[Mapping[str, Any], ...] = ()
    env_from: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    tensorboard: TensorBoard | None = None
    ttl_seconds: int = 86400

    def __post_init__(self) -> None:
        with Checks() as check:
            named = bool(self.image) or _template_image(self.pod_template)
            check.that(named, "image", self.image, "the name of an image, here or in pod_template")
            good = _NAME.fullmatch(self.namespace) is not None
            check.that(good, "namespace", self.namespace, "1 to 63 lower-case letters, digits and '-'")
            if self.image_pull_policy is not None:
                check("image_pull_policy", self.image_pull_policy, choice(_PULL_POLICIES))
            check("queueing", self.queueing, choice(_QUEUEING))
            if self.disruption_mode is not None:
                check("disruption_mode", self.disruption_mode, choice(DISRUPTION_MODES))
            of_pods = self.pod_template.get("metadata", {}).get("labels", {})
            for where, labels in (("labels", self.labels), ("pod_template.metadata.labels", of_pods)):
                for label, option in QUEUE_LABELS.items():
                    given = labels.get(label)
                    check.that(given is None, f"{where}.{label}", given, f"nothing: say it as {option}")
            queued = self.queue_priority is None or (self.queue is not None and self.queueing == "kueue")
            allowed = "a queue of Kueue beside it (with Volcano: priority_class)"
            check.that(queued, "queue_priority", self.queue_priority, allowed)
            good = self.shared_memory is None or is_quantity(self.shared_memory)
            check.that(good, "shared_memory", self.shared_memory, ALLOWED)
            check("ttl_seconds", self.ttl_seconds, int32)

    @property
    def by_kueue(self) -> bool:
        """Whether `queue` names a queue of Kueue."""
        return self.queueing == "kueue" and self.queue is not None

    @property
    def access(self) -> Access:
        """How to reach the cluster."""
        return Access(kubeconfig=self.kubeconfig, context=self.context)


def options_of(spec: RunSpec, cls: type[KubeOptions] = KubeOptions) -> KubeOptions:
    """The options of a specification, as a `cls`. Raises SpecError with the paths of bad ones."""
    try:
        return decode(cls, dict(spec.engine_options))
    except SpecError as error:
        raise error.below("engine_options") from None


def _template_image(template: Mapping[str, Any]) -> bool:
    containers = template.get("spec", {}).get("containers", ())
    return any(isinstance(one, Mapping) and one.get("image") for one in containers)
