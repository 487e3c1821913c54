"""Taking a manifest apart: what is understood is taken out of it, and what is left over is an error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from airflow_elastic.engines.kube.manifests.command_lines import Launch, launch_of
from airflow_elastic.engines.kube.manifests.trainer import renamed, training_container
from airflow_elastic.engines.kube.options import QUEUE_LABELS
from airflow_elastic.engines.kube.render.names import MARGIN_SECONDS
from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.run import RunSpec

_BY_SERVER = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
    *("deletionTimestamp", "deletionGracePeriodSeconds"),
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

#: Of a pod: what our own options say, and their names there.
_POD_WORDS = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "serviceAccountName": "service_account",
    "schedulerName": "scheduler",
}


class Part:
    """A part of a manifest, out of which what is understood is taken."""

    def __init__(self, data: Any, path: str = "", problems: list[Problem] | None = None) -> None:
        self.path, self.problems = path, [] if problems is None else problems
        self._top = problems is None
        self._parts: list[Part] = []
        if not isinstance(data, Mapping):
            self.refuse("", data, "a mapping")
        self.data: dict[str, Any] = copy.deepcopy(dict(data)) if isinstance(data, Mapping) else {}

    def take(self, key: str, default: Any = None) -> Any:
        """A field, which is then taken."""
        value = self.data.pop(key, None)
        return default if value is None else value

    def drop(self, *keys: str) -> None:
        """Fields that say nothing about what is to run."""
        for key in keys:
            self.data.pop(key, None)

    def part(self, key: str) -> Part:
        """A field that is a mapping itself; empty where there is none."""
        made = Part(self.take(key, {}), f"{self.path}.{key}".lstrip("."), self.problems)
        self._parts.append(made)
        return made

    def rest(self) -> dict[str, Any]:
        """All that has not been taken."""
        rest, self.data = self.data, {}
        return {key: value for key, value in rest.items() if value is not None}

    def refuse(self, key: str, given: object, allowed: str) -> None:
        """Note what cannot be kept."""
        self.problems.append(Problem(f"{self.path}.{key}".strip("."), given, allowed))

    def only(self, key: str, *allowed: Any, why: str) -> None:
        """Take a field that must be absent, or one of these."""
        value = self.take(key)
        if value is not None and value not in allowed:
            self.refuse(key, value, why)

    def end(self) -> None:
        """Refuse what is left. The outermost raises it, with all else."""
        for part in self._parts:
            part.end()
        for key, value in self.rest().items():
            self.refuse(key, value, "nothing: a run has no word for this field, so it would be lost")
        if self._top and self.problems:
            raise SpecError(*self.problems)


class Run:
    """A specification in the making."""

    def __init__(self) -> None:
        self.plain: dict[str, Any] = {"workers": {}, "restart": {}, "engine_options": {}}
        self.options: dict[str, Any] = self.plain["engine_options"]
        self.workers: dict[str, Any] = self.plain["workers"]
        self.restart: dict[str, Any] = self.plain["restart"]

    def spec(self) -> RunSpec:
        """The finished one. Raises SpecError."""
        return RunSpec.from_dict({key: value for key, value in self.plain.items() if value not in ({}, None)})

    def number(self, count: int, least: int | None = None, most: int | None = None) -> None:
        """How many workers."""
        self.workers["count"] = count
        if (least, most) != (None, None):
            self.workers["min"] = min(least or count, count)
            self.workers["max"] = max(most or count, count)

    def policy(self, part: Part, cleanup: str) -> None:
        """A `runPolicy`: restarts, deadline and what is removed at the end are the run's."""
        self.limits(part)
        policy = part.take(cleanup)
        if policy is not None:
            self.plain["cleanup"] = {"Running": "Unfinished"}.get(policy, policy)

    def limits(self, part: Part) -> None:
        """`backoffLimit` and `activeDeadlineSeconds`."""
        if (limit := part.take("backoffLimit")) is not None:
            self.restart["backoff_limit"] = limit
        if (deadline := part.take("activeDeadlineSeconds")) is not None:
            self.plain["active_deadline_seconds"] = deadline

    def grace(self, seconds: Any, part: Part) -> None:
        """`terminationGracePeriodSeconds`: what workers get to save, and a margin to end."""
        if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds <= MARGIN_SECONDS:
            allowed = (
                f"a number of seconds above {MARGIN_SECONDS}: workers save within it when they are to end"
            )
            part.refuse("terminationGracePeriodSeconds", seconds, allowed)
            return
        self.plain["health"] = {"grace_seconds": float(seconds - MARGIN_SECONDS)}

    def launch(self, found: Launch, part: Part, procs: str | None = None) -> None:
        """Launcher and command."""
        self.plain |= {"launcher": found.launcher, "command": list(found.command)}
        if found.python is not None:
            self.options["python"] = found.python
        unit = found.options.pop("node_unit", None)
        if unit is not None:
            self.workers["node_unit"] = unit
        if found.options:
            self.plain["launcher_options"] = found.options
        if found.max_restarts is not None:
            self.restart.setdefault("backoff_limit", found.max_restarts)
        if found.nodes is not None and found.nodes[0] != found.nodes[1]:
            least, most = found.nodes
            count = self.workers.get("count", least)
            self.workers.setdefault("min", min(least, count))
            self.workers.setdefault("max", max(most, count))
        words = found.procs or procs
        if found.launcher != "python" and words is not None:
            self.workers["procs"] = self._procs(str(words), part)

    def _procs(self, words: str, part: Part) -> int:
        if words.isdecimal():
            return int(words)
        gpus = [amount for name, amount in self.workers.get("resources", {}).items() if "gpu" in name]
        if words in ("gpu", "auto") and len(gpus) == 1 and gpus[0].isdecimal():
            return int(gpus[0])
        part.refuse("command", words, "a number of processes, or gpu and auto with GPUs among the limits")
        return 1


def take_metadata(part: Part, run: Run) -> None:
    """Names, labels and annotations; what an API server has written is not the manifest's own."""
    part.drop(*_BY_SERVER)
    name = part.take("name") or str(part.take("generateName", "run")).rstrip("-")
    part.drop("generateName")
    run.plain["name"] = name
    run.options["namespace"] = part.take("namespace", "default")
    annotations = {k: v for k, v in part.take("annotations", {}).items() if k != _LAST_APPLIED}
    labels = dict(part.take("labels", {}))
    queue = {option: labels.pop(label) for label, option in QUEUE_LABELS.items() if label in labels}
    run.options |= queue
    for word, value in (("labels", labels), ("annotations", annotations)):
        if value:
            run.options[word] = value


# -- pods --------------------------------------------------------------------------------------------------------------


def take_template(
    part: Part,
    run: Run,
    container: str,
    *,
    theirs: str | None = None,
    torchrun: bool = False,
    procs: str | None = None,
) -> None:
    """A pod template.

    Args:
        part: the template.
        run: what it becomes.
        container: the training container's name in what we render.
        theirs: its name in the manifest, where its operator looks for one.
        torchrun: the arguments are torchrun's.
        procs: ranks of a worker, where the command does not say.
    """
    over: dict[str, Any] = {}
    metadata = part.part("metadata")
    metadata.drop("creationTimestamp", "name")
    told = metadata.rest()
    spec = part.part("spec")
    spec.drop("restartPolicy")
    if (seconds := spec.take("terminationGracePeriodSeconds")) is not None:
        run.grace(seconds, spec)
    containers = spec.take("containers", [])
    if not containers:
        spec.refuse("containers", containers, "a container that trains")
        return
    at = training_container(containers, theirs, told)
    if told := renamed(told, containers[at].get("name")):
        over["metadata"] = told
    main = Part(containers.pop(at), f"{spec.path}.containers.{at}", part.problems)
    for theirs_word, ours in _POD_WORDS.items():
        if (value := spec.take(theirs_word)) is not None:
            run.options[ours] = value
    take_container(main, run, torchrun=torchrun, procs=procs)
    mine = main.rest()
    rest = spec.rest()
    if mine or containers:
        rest["containers"] = [{"name": container, **mine}, *containers]
    if rest:
        over["spec"] = rest
    if over:
        run.options["pod_template"] = over


def take_container(part: Part, run: Run, *, torchrun: bool, procs: str | None) -> None:
    """What our own words can say of the training container is taken out of it."""
    part.drop("name")
    run.options["image"] = part.take("image")
    if (pull := part.take("imagePullPolicy")) is not None:
        run.options["image_pull_policy"] = pull
    if (folder := part.take("workingDir")) is not None:
        run.plain["working_dir"] = folder
    given, raw = part.take("env", []), []
    plain: dict[str, str] = {}
    for one in given:
        value = one.get("value", "")
        if "valueFrom" in one or "$(" in value or one["name"].startswith("AIRFLOW_ELASTIC_"):
            raw.append(one)
        else:
            plain[one["name"]] = value
    if plain:
        run.plain["env"] = plain
    if raw:
        part.data["env"] = raw
    resources = part.data.get("resources") or {}
    limits = {name: str(amount) for name, amount in (resources.get("limits") or {}).items()}
    requests = {name: str(amount) for name, amount in (resources.get("requests") or limits).items()}
    if limits == requests and set(resources) <= {"limits", "requests"}:
        part.drop("resources")
        if limits:
            run.workers["resources"] = limits
    elif limits:
        run.workers["resources"] = {name: amount for name, amount in limits.items() if "gpu" in name}
    command, arguments = part.take("command", []), part.take("args", [])
    words = ["torchrun", *arguments] if torchrun else [*command, *arguments]
    if not command and not torchrun:
        why = "the program and its arguments: what the image would start is not known here"
        part.refuse("command", command or None, why)
        return
    try:
        found = launch_of(words, f"{part.path}.command", [one["name"] for one in given])
    except SpecError as error:
        part.problems += error.problems
        return
    run.launch(found, part, procs)
