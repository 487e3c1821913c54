"""Names and pods of a manifest: fields with options of their own become these; the rest becomes `pod_template`."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_elastic.engines.kube.manifests.commands import Launch, Scope, find_launch
from airflow_elastic.engines.kube.manifests.commands.launches import is_python
from airflow_elastic.engines.kube.manifests.commands.variables import values_of
from airflow_elastic.engines.kube.manifests.run_builder import Procs, RunBuilder, is_device
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.engines.kube.manifests.trainer import renamed, training_container
from airflow_elastic.engines.kube.render.names import MARGIN_SECONDS, QUEUE_LABELS
from airflow_elastic.engines.quantities import written
from airflow_elastic.spec.errors import ABSENT, SpecError

#: Metadata that an API server writes.
BY_SERVER = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

#: Labels that a Job's controller writes, in manifests that come from a cluster.
BY_CONTROLLER = (
    *("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name"),
)

#: Fields of a pod with options of their own, and the options' names.
_POD_WORDS = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "serviceAccountName": "service_account",
    "schedulerName": "scheduler",
}

#: Options of torchrun as variables. The agent removes them from the environment: the run has its own rendezvous.
_TORCHRUN_COUNTS = {
    "PET_NNODES": "nnodes",
    "PET_NPROC_PER_NODE": "nproc_per_node",
    "PET_MAX_RESTARTS": "max_restarts",
}
_TORCHRUN_MEETING = (
    *(
        "PET_RDZV_BACKEND",
        "PET_RDZV_ENDPOINT",
        "PET_RDZV_ID",
        "PET_RDZV_CONF",
        "PET_NODE_RANK",
        "PET_LOCAL_ADDR",
    ),
    *("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_MONITOR_INTERVAL", "PET_START_METHOD"),
)


def take_metadata(part: Section, run: RunBuilder) -> None:
    """Names, labels and annotations; fields that an API server has written do not count."""
    part.drop(*BY_SERVER)
    key = "name" if part.data.get("name") else "generateName"
    run.set_field("name", str(part.take(key, "run")).rstrip("-"), part.at(key))
    part.drop("generateName")
    run.set_field("engine_options.namespace", part.take("namespace", "default"), part.at("namespace"))
    annotations = {k: v for k, v in part.take("annotations", {}).items() if k != LAST_APPLIED}
    labels = {k: v for k, v in part.take("labels", {}).items() if k not in BY_CONTROLLER}
    for label, option in QUEUE_LABELS.items():
        run.set_field(f"engine_options.{option}", labels.pop(label, None), f"{part.at('labels')}.{label}")
    run.set_field("engine_options.labels", labels or None, part.at("labels"))
    run.set_field("engine_options.annotations", annotations or None, part.at("annotations"))


def take_template(
    part: Section,
    run: RunBuilder,
    container: str,
    *,
    theirs: str | None = None,
    torchrun: bool = False,
    procs: Procs | None = None,
    operator: Scope | None = None,
) -> None:
    """A pod template.

    Args:
        part: the template.
        run: the specification.
        container: the training container's name in the rendered pod.
        theirs: its name in the manifest, if its operator looks for one.
        torchrun: the arguments are torchrun's.
        procs: ranks of a worker, if the command does not give them.
        operator: the variables that the kind's operator sets.
    """
    metadata = part.part("metadata")
    metadata.drop("creationTimestamp", "name", "generateName", "namespace")
    metadata.data["labels"] = {k: v for k, v in metadata.take("labels", {}).items() if k not in BY_CONTROLLER}
    told = {key: value for key, value in metadata.rest().items() if value != {}}
    spec = part.part("spec")
    spec.drop("restartPolicy")
    containers = spec.take("containers", [])
    if not containers:
        spec.refuse("containers", ABSENT, "this field is required: a container that trains")
        return
    at = training_container(containers, theirs, told)
    told = renamed(told, containers[at].get("name"))
    run.set_field("engine_options.pod_template.metadata", told or None, metadata.path)
    main = spec.of(containers.pop(at), f"containers.{at}")
    for i, one in enumerate(containers):
        path = f"containers.{i + (i >= at)}.name"
        if not one.get("name"):
            spec.refuse(path, ABSENT, "this field is required")
        elif one["name"] == container:
            spec.refuse(path, container, "another name: the container that trains is called so")
    for theirs_word, ours in _POD_WORDS.items():
        run.option(ours, spec, theirs_word)
    _take_grace(spec, run)
    take_container(main, run, torchrun=torchrun, procs=procs, operator=operator or Scope())
    mine = main.rest()
    if mine:
        run.source[f"engine_options.pod_template.spec.containers.{0}"] = main.path
    rest = spec.rest()
    if mine or containers:
        rest["containers"] = [{"name": container, **mine}, *containers]
    run.set_field("engine_options.pod_template.spec", rest or None, spec.path)


def _take_grace(spec: Section, run: RunBuilder) -> None:
    """The pod's grace period is the time for its ranks, and some seconds for the agent."""
    key = "terminationGracePeriodSeconds"
    seconds = spec.take(key)
    if seconds is not None and seconds <= MARGIN_SECONDS:
        spec.refuse(
            key,
            seconds,
            f"a number of seconds above {MARGIN_SECONDS}: workers save within it before they end",
        )
    elif seconds is not None:
        run.set_field("health.grace_seconds", float(seconds - MARGIN_SECONDS), spec.at(key))


def take_container(
    part: Section, run: RunBuilder, *, torchrun: bool, procs: Procs | None, operator: Scope
) -> None:
    """The fields of the training container that have options of their own become these."""
    part.drop("name")
    run.option("image", part, "image")
    run.option("image_pull_policy", part, "imagePullPolicy")
    run.set_field("working_dir", part.take("workingDir"), part.at("workingDir"))
    scope, torchrun_words = _take_env(part, run, operator)
    _take_resources(part, run)
    command, arguments = part.take("command", []), part.take("args", [])
    if torchrun:
        if command and not is_python(command[0]):
            part.refuse("command", command, "python: the operator puts torchrun in its place")
        command = ["torchrun"]
    elif not command:
        why = "the program and its arguments: what the image would start is not known here"
        part.refuse("command", ABSENT, f"this field is required, with {why}")
        return
    path = part.at("args" if torchrun else "command")
    try:
        take_launch([*command, *arguments], path, run, scope, torchrun_words, procs)
    except SpecError as error:
        part.problems += error.problems


def take_launch(
    words: list[str],
    path: str,
    run: RunBuilder,
    scope: Scope,
    torchrun_words: Mapping[str, str],
    procs: Procs | None,
) -> None:
    """The launcher in a command. Options of torchrun in variables are read as if they were in the command."""
    found = find_launch(words, path, scope)
    if found.launcher in ("torchrun", "dlrover-run"):
        _add(found, torchrun_words, path)
    run.launch(found, path, procs or Procs(None, path))


def _add(found: Launch, words: Mapping[str, str], path: str) -> None:
    """Options of torchrun in variables, if the command does not have them."""
    said = find_launch(["torchrun", *(f"--{key}={value}" for key, value in words.items()), "any.py"], path)
    found.nodes = found.nodes or said.nodes
    found.procs = found.procs or said.procs
    found.max_restarts = said.max_restarts if found.max_restarts is None else found.max_restarts


def _take_env(part: Section, run: RunBuilder, operator: Scope) -> tuple[Scope, dict[str, str]]:
    """The variables. Plain ones become `env`, others stay as they are; those of torchrun are returned."""
    given = part.data.get("env", [])
    names = [one["name"] for one in given]
    torchrun: dict[str, str] = {}
    kept = []
    for i, one in enumerate(given):
        name, path = one["name"], f"env.{i}"
        if one.get("value") and "valueFrom" in one:
            part.refuse(
                f"{path}.valueFrom", one["valueFrom"], "nothing beside a value: Kubernetes allows one of them"
            )
        elif name.startswith("AIRFLOW_ELASTIC_"):
            part.refuse(f"{path}.name", name, "any name but our own AIRFLOW_ELASTIC_*")
        elif name == "PYTHONUNBUFFERED" and not (one.get("value") and _is_plain(one)):
            part.refuse(path, one, "PYTHONUNBUFFERED=1, or nothing: the agent's ranks never buffer")
        elif name in _TORCHRUN_COUNTS and _is_plain(one) and "$(" not in one.get("value", ""):
            torchrun[_TORCHRUN_COUNTS[name]] = one.get("value", "")
        elif name.startswith("PET_") and name not in _TORCHRUN_MEETING:
            text = "an option in the command, with a plain value: torchrun's variables do not reach the ranks of a run"
            part.refuse(path, one, text)
        elif name != "PYTHONUNBUFFERED":
            kept.append(one)
    pairs = [(one["name"], one.get("value", "") if _is_plain(one) else None) for one in given]
    values, unknown = values_of(pairs, operator)
    scope = Scope(values, unknown, bool(part.data.get("envFrom")))
    ordered = len({*names}) < len(names) or any("$" in one.get("value", "") for one in kept)
    raw = kept if ordered else [one for one in kept if not _is_plain(one)]
    plain = {} if ordered else {one["name"]: one.get("value", "") for one in kept if _is_plain(one)}
    part.drop("env")
    if raw:
        part.data["env"] = raw
    run.set_field("env", plain or None, part.at("env"))
    for i, one in enumerate(given):
        run.source[f"env.{one['name']}"] = part.at(f"env.{i}.name")
    return scope, torchrun


def _is_plain(variable: Mapping[str, object]) -> bool:
    """Whether it has a name, and text or nothing as its value."""
    return variable.keys() <= {"name", "value"}


def _take_resources(part: Section, run: RunBuilder) -> None:
    """Equal requests and limits become the run's; others stay as they are, and only devices are taken over."""
    resources = part.data.get("resources") or {}
    limits = {name: written(amount) for name, amount in (resources.get("limits") or {}).items()}
    requests = {name: written(amount) for name, amount in (resources.get("requests") or limits).items()}
    if limits == requests and set(resources) <= {"limits", "requests"}:
        part.drop("resources")
    else:
        limits = {name: amount for name, amount in limits.items() if is_device(name)}
    run.set_field("workers.resources", limits or None, f"{part.at('resources')}.limits")
