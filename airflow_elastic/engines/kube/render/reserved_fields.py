"""The parts of a pod that the engines rely on, declared once: what happens to a user's own value in the same place.

`check` refuses by this list, and docs/reference/pods.md prints it. Runs of an earlier release may have options that
`check` has not seen. They do no harm: in `engine_values` the engines' values win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_elastic.engines.kube.render import names
from airflow_elastic.spec.errors import Problem

if TYPE_CHECKING:
    from airflow_elastic.engines.kube.options import KubeOptions
    from airflow_elastic.spec.run import RunSpec


class UserValue(StrEnum):
    """What happens to a user's own value."""

    REFUSED = "refused"
    KEPT = "kept"
    BOTH = "both hold"


class PodSettings(NamedTuple):
    """A user's settings for pods.

    Attributes:
        spec: of the run.
        options: of its engine.
        container: the name of the training container.
    """

    spec: RunSpec
    options: KubeOptions
    container: str

    @property
    def pod(self) -> Mapping[str, Any]:
        """`spec` of the pod template."""
        return self.options.pod_template.get("spec") or {}

    @property
    def trainer(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The training container of the pod template with its path; nothing if the template does not name it."""
        for i, one in enumerate(self.pod.get("containers") or ()):
            if one.get("name") == self.container:
                yield f"{_POD}.containers.{i}", one


Found = Iterable[tuple[str, object]]

_POD = "engine_options.pod_template.spec"


class ReservedField(NamedTuple):
    """Something that the engines write or rely on.

    Attributes:
        what: as people write it in a manifest.
        use: its purpose.
        fate: what happens to a user's own value.
        rule: what is allowed instead, or how both values combine.
        against: finds what is refused, by its path.
    """

    what: str
    use: str
    fate: UserValue
    rule: str
    against: Callable[[PodSettings], Found] = lambda given: ()


# -- what is looked for ------------------------------------------------------------------------------------------------


def _metadata(given: PodSettings, *words: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Labels, annotations, or both, at all places where a user can set them; with their paths."""
    of_pods = given.options.pod_template.get("metadata") or {}
    for word in words:
        yield f"engine_options.{word}", getattr(given.options, word)
        yield f"engine_options.pod_template.metadata.{word}", of_pods.get(word) or {}


def _named(
    *starts: str, words: tuple[str, ...] = ("labels", "annotations")
) -> Callable[[PodSettings], Found]:
    """Labels and annotations that begin with one of these."""

    def against(given: PodSettings) -> Found:
        for path, found in _metadata(given, *words):
            yield from ((f"{path}.{name}", value) for name, value in found.items() if name.startswith(starts))

    return against


def _field(name: str, allowed: Callable[[PodSettings, Any], bool]) -> Callable[[PodSettings], Found]:
    """A field of the pod with a value that is not allowed."""

    def against(given: PodSettings) -> Found:
        value = given.pod.get(name)
        if value is not None and not allowed(given, value):
            yield f"{_POD}.{name}", value

    return against


def _of_trainer(*fields: str) -> Callable[[PodSettings], Found]:
    """Any of these fields of the training container."""

    def against(given: PodSettings) -> Found:
        for path, one in given.trainer:
            yield from ((f"{path}.{name}", one[name]) for name in fields if one.get(name) is not None)

    return against


def _command(given: PodSettings) -> Found:
    for path, one in given.trainer:
        words = [*(one.get("command") or ()), *(one.get("args") or ())]
        if words and not any(names.AGENT in str(word) for word in words):
            yield f"{path}.{'command' if one.get('command') else 'args'}", words


def _variables(given: PodSettings) -> Found:
    for path, one in given.trainer:
        for i, variable in enumerate(one.get("env") or ()):
            if str(variable.get("name", "")).startswith(names.VARIABLE_PREFIX):
                yield f"{path}.env.{i}.name", variable["name"]


def _volumes(given: PodSettings) -> Found:
    for i, one in enumerate(given.pod.get("volumes") or ()):
        if str(one.get("name", "")).startswith(names.VOLUME_PREFIX):
            yield f"{_POD}.volumes.{i}.name", one["name"]


def _mounts(given: PodSettings) -> Found:
    options = given.options
    ours = {volume.mount_path.rstrip("/"): "volumes" for volume in options.volumes}
    if options.shared_memory:
        ours[names.SHARED_MEMORY_PATH] = "shared_memory"
    for path, one in given.trainer:
        for i, mount in enumerate(one.get("volumeMounts") or ()):
            if str(mount.get("mountPath", "")).rstrip("/") in ours:
                yield f"{path}.volumeMounts.{i}.mountPath", mount["mountPath"]


def _container_name(given: PodSettings) -> Found:
    lists = (
        ("engine_options.init_containers", given.options.init_containers),
        (f"{_POD}.initContainers", given.pod.get("initContainers") or ()),
    )
    for path, found in lists:
        for i, one in enumerate(found):
            if one.get("name") == given.container:
                yield f"{path}.{i}.name", given.container
    trainers = [f"{path}.name" for path, _ in given.trainer]
    yield from ((path, given.container) for path in trainers[1:])


def _group(given: PodSettings) -> Found:
    if given.options.queueing == "volcano":
        yield from _named(names.GROUP_ANNOTATION, words=("annotations",))(given)


def grace_seconds(spec: RunSpec) -> int:
    """The grace period of a worker's pod: the run's time for saving, and a margin."""
    return round(spec.health.grace_seconds) + names.MARGIN_SECONDS


#: Labels by which operators and controllers find their own pods. They write them themselves.
OF_OPERATORS = (
    *("batch.kubernetes.io/", "training.kubeflow.org/", "trainer.kubeflow.org/", "jobset.sigs.k8s.io/"),
    *("elasticjob.dlrover/", "kueue.x-k8s.io/pod-group-"),
)

RESERVED_FIELDS: tuple[ReservedField, ...] = (
    ReservedField(
        f"labels and annotations `{names.PREFIX}…`",
        "find a run's jobs and pods",
        UserValue.REFUSED,
        "nothing: they are airflow-elastic's own",
        _named(names.PREFIX),
    ),
    ReservedField(
        ", ".join(f"`{one}…`" for one in OF_OPERATORS),
        "operators find their pods by them, and the engines a worker's number",
        UserValue.REFUSED,
        "nothing: the controller that makes the pods writes it",
        _named(*OF_OPERATORS),
    ),
    ReservedField(
        "labels `kueue.x-k8s.io/queue-name`, `kueue.x-k8s.io/priority-class`",
        "Kueue finds a job's queue by them",
        UserValue.REFUSED,
        "nothing: say it as queue, queue_priority",
    ),
    ReservedField(
        f"annotation `{names.GROUP_ANNOTATION}`, with `queueing: volcano`",
        "Volcano finds a pod's gang by it",
        UserValue.REFUSED,
        "nothing with queueing volcano: the gang is the job's own",
        _group,
    ),
    ReservedField(
        f"label `{names.MANAGED_LABEL}`",
        f"says `{names.MANAGED_BY}`; nothing is found by it",
        UserValue.KEPT,
        "a value of the user's stands",
    ),
    ReservedField(
        f"annotation `{names.DEFAULT_CONTAINER}`",
        "names the training container, for `kubectl logs`",
        UserValue.KEPT,
        "a value of the user's stands",
    ),
    ReservedField(
        "`restartPolicy` of the pod",
        "a worker has one life in an attempt: the run decides what follows",
        UserValue.REFUSED,
        "Never: the run restarts workers itself (restart)",
        _field("restartPolicy", lambda given, value: value == "Never"),
    ),
    ReservedField(
        "`restartPolicy`, `restartPolicyRules` of the training container",
        "the same",
        UserValue.REFUSED,
        "nothing: the run restarts workers itself (restart)",
        _of_trainer("restartPolicy", "restartPolicyRules"),
    ),
    ReservedField(
        "`activeDeadlineSeconds` of the pod",
        "the run keeps its own clock",
        UserValue.REFUSED,
        "nothing: say it as active_deadline_seconds of the run",
        _field("activeDeadlineSeconds", lambda given, value: False),
    ),
    ReservedField(
        "`terminationGracePeriodSeconds`",
        f"workers save within `health.grace_seconds`, and have {names.MARGIN_SECONDS} s more to end",
        UserValue.REFUSED,
        f"at least health.grace_seconds + {names.MARGIN_SECONDS}: a longer one stands",
        _field(
            "terminationGracePeriodSeconds", lambda given, value: _at_least(value, grace_seconds(given.spec))
        ),
    ),
    ReservedField(
        "the training container's name: `trainer`, `pytorch`, `node`, `main`, `python` with the engines "
        "`job`, `pytorchjob`, `trainjob`, `elasticjob`, `pytorchtrainingjob`",
        "phase, exit code, evidence and logs are this container's",
        UserValue.REFUSED,
        "another name: the training container has this one",
        _container_name,
    ),
    ReservedField(
        "`command`, `args` of the training container",
        f"start the worker's agent, `python -m {names.AGENT}`",
        UserValue.REFUSED,
        f"words that start `-m {names.AGENT}`: the script is the run's command",
        _command,
    ),
    ReservedField(
        f"variables `{names.VARIABLE_PREFIX}…` of the training container, and of the run's `env`",
        "name the agent's worker and run",
        UserValue.REFUSED,
        "any name but our own AIRFLOW_ELASTIC_*",
        _variables,
    ),
    ReservedField(
        "`terminationMessagePath`",
        f"the agent says there how its worker ended (`{names.TERMINATION_LOG}`)",
        UserValue.KEPT,
        "the agent writes where the container says",
    ),
    ReservedField(
        f"volumes `{names.VOLUME_PREFIX}…`",
        "those of `volumes` and `shared_memory`",
        UserValue.REFUSED,
        "another name: those of volumes and shared_memory begin so",
        _volumes,
    ),
    ReservedField(
        "mounts of the training container at a path of `volumes`, or at `/dev/shm` with `shared_memory`",
        "the run's folder, scratch disks, memory for data loaders",
        UserValue.REFUSED,
        "another path, or none: volumes or shared_memory mount something there",
        _mounts,
    ),
    ReservedField(
        "`affinity`",
        "keeps a run off machines that failed, and together where `topology` says",
        UserValue.BOTH,
        "the run's terms are added to the user's",
    ),
)


def refused(given: PodSettings) -> list[Problem]:
    """The user's settings that are refused, because the engines rely on these parts."""
    return [
        Problem(path, value, one.rule)
        for one in RESERVED_FIELDS
        if one.fate is UserValue.REFUSED
        for path, value in one.against(given)
    ]


def refused_beside(template: Mapping[str, Any], path: str) -> list[Problem]:
    """The same for a pod beside the workers, such as a job master: only its labels, and that nobody restarts it."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    problems = [
        Problem(
            f"{path}.metadata.{word}.{name}", value, "nothing: the controller that makes the pods writes it"
        )
        for word in ("labels", "annotations")
        for name, value in (metadata.get(word) or {}).items()
        if name.startswith((names.PREFIX, *OF_OPERATORS))
    ]
    policy = spec.get("restartPolicy", "Never")
    if policy != "Never":
        problems.append(
            Problem(f"{path}.spec.restartPolicy", policy, "Never: the run restarts the job itself")
        )
    return problems


def _at_least(value: Any, least: int) -> bool:
    return isinstance(value, int) and value >= least
