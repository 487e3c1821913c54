"""A manifest that somebody has becomes the specification of a run: `from_manifest("job.yaml")`.

All that it says is kept: in our words where there are any, in `engine_options.pod_template` where not. What cannot be
kept is refused. So every field is taken out of the manifest where it is understood, and what is left over is an error.
What the run does itself goes over to it: restarts, deadlines, and how workers meet.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from airflow_elastic.engines.kube.command_lines import Launch, launch_of
from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError
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


def from_manifest(manifest: str | Path | Mapping[str, Any]) -> RunSpec:
    """The run that a manifest describes.

    Args:
        manifest: a Job, PyTorchJob, TrainJob, ElasticJob or PyTorchTrainingJob, or the path of a YAML file with one.

    Raises:
        SpecError: something in it cannot be kept: with all of it that is known, by its paths in the manifest.
        InvalidInput: the file cannot be read, or holds no such thing.
    """
    whole = manifest if isinstance(manifest, Mapping) else _read(Path(manifest))
    group, kind = str(whole.get("apiVersion", "")).partition("/")[0], whole.get("kind")
    reader = _KINDS.get((group, kind))
    if reader is None:
        known = ", ".join(f"{name} of {where}" for where, name in _KINDS)
        raise SpecError(Problem("kind", f"{whole.get('apiVersion')} {kind}", known))
    part = Part(whole)
    part.drop("apiVersion", "kind", "status")
    run = Run()
    _metadata(part.part("metadata"), run)
    reader(part.part("spec"), run)
    part.end()
    return run.spec()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        documents = [one for one in yaml.safe_load_all(path.read_text()) if one is not None]
    except OSError as error:
        raise InvalidInput(f"{path}: {(error.strerror or str(error)).lower()}; name a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: it is no YAML: {' '.join(str(error).split())}") from None
    if len(documents) != 1 or not isinstance(documents[0], Mapping):
        raise InvalidInput(f"{path}: it holds {len(documents)} documents; wanted is one object")
    return documents[0]


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


def _metadata(part: Part, run: Run) -> None:
    part.drop(*_BY_SERVER)
    name = part.take("name") or str(part.take("generateName", "run")).rstrip("-")
    part.drop("generateName")
    run.plain["name"] = name
    run.options["namespace"] = part.take("namespace", "default")
    annotations = {k: v for k, v in part.take("annotations", {}).items() if k != _LAST_APPLIED}
    for word, value in (("labels", part.take("labels")), ("annotations", annotations)):
        if value:
            run.options[word] = value


# -- pods --------------------------------------------------------------------------------------------------------------


def _template(
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
        theirs: its name in the manifest, else it is the first.
        torchrun: the arguments are torchrun's.
        procs: ranks of a worker, where the command does not say.
    """
    over: dict[str, Any] = {}
    metadata = part.part("metadata")
    metadata.drop("creationTimestamp", "name")
    if told := metadata.rest():
        over["metadata"] = told
    spec = part.part("spec")
    spec.drop("restartPolicy")
    containers = spec.take("containers", [])
    at = next((i for i, one in enumerate(containers) if one.get("name") == theirs), 0)
    if not containers:
        spec.refuse("containers", containers, "a container that trains")
        return
    main = Part(containers.pop(at), f"{spec.path}.containers.{at}", part.problems)
    for theirs_word, ours in _POD_WORDS.items():
        if (value := spec.take(theirs_word)) is not None:
            run.options[ours] = value
    _container(main, run, torchrun=torchrun, procs=procs)
    mine = main.rest()
    rest = spec.rest()
    if mine or containers:
        rest["containers"] = [{"name": container, **mine}, *containers]
    if rest:
        over["spec"] = rest
    if over:
        run.options["pod_template"] = over


def _container(part: Part, run: Run, *, torchrun: bool, procs: str | None) -> None:
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


# -- kinds -------------------------------------------------------------------------------------------------------------

_NOT_NOW = "false: a run begins when it is submitted, and waits in a queue where one is named"


def _job(part: Part, run: Run) -> None:
    run.plain["engine"] = "job"
    parallelism, completions = part.take("parallelism", 1), part.take("completions", 1)
    if parallelism != completions:
        part.refuse("completions", completions, f"as parallelism, {parallelism}: all workers train together")
    run.number(parallelism)
    part.only("completionMode", "Indexed", "NonIndexed", why="Indexed or NonIndexed")
    part.only("suspend", False, why=_NOT_NOW)
    run.limits(part)
    if (ttl := part.take("ttlSecondsAfterFinished")) is not None:
        run.options["ttl_seconds"] = ttl
    _template(part.part("template"), run, "trainer")


def _pytorchjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "pytorchjob"
    replicas = part.part("pytorchReplicaSpecs")
    names = [name for name in ("Master", "Worker") if name in replicas.data]
    if not names:
        replicas.refuse("Worker", None, "a Worker or a Master")
        return
    counts, templates = {}, {}
    for name in names:
        one = replicas.part(name)
        counts[name] = one.take("replicas", 1)
        run.restart["policy"] = one.take("restartPolicy", "OnFailure")
        templates[name] = one.part("template")
    if len(names) == 2:
        if templates["Master"].data != templates["Worker"].data:
            replicas.refuse(
                "Master.template", "another one", "as Worker.template: all workers of a run are alike"
            )
        templates["Master"].rest()
        run.options["master"] = True
    before = counts.get("Master", 0) if "Worker" in counts else 0
    elastic = part.part("elasticPolicy")
    least, most = elastic.take("minReplicas"), elastic.take("maxReplicas")
    run.number(sum(counts.values()), *(None if n is None else n + before for n in (least, most)))
    limit = elastic.data.get("maxRestarts")
    if told := elastic.rest():
        run.options["elastic_policy"] = told
    elif (least, most) != (None, None):
        run.options["elastic_policy"] = {}
    policy = part.part("runPolicy")
    run.policy(policy, "cleanPodPolicy")
    if limit is not None:
        run.restart.setdefault("backoff_limit", limit)
    if (ttl := policy.take("ttlSecondsAfterFinished")) is not None:
        run.options["ttl_seconds"] = ttl
    if told := policy.rest():
        run.options["run_policy"] = told
    procs = part.take("nprocPerNode")
    _template(templates[names[-1]], run, "pytorch", theirs="pytorch", procs=procs)


def _trainjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "trainjob"
    ref = part.part("runtimeRef")
    ref.drop("apiGroup")
    run.options["runtime"] = {"name": ref.take("name"), "kind": ref.take("kind", "ClusterTrainingRuntime")}
    part.only("suspend", False, why=_NOT_NOW)
    run.limits(part)
    for word in ("labels", "annotations"):
        if told := part.take(word):
            run.options[word] = {**run.options.get(word, {}), **told}
    trainer = part.part("trainer")
    run.number(trainer.take("numNodes", 1))
    procs = trainer.take("numProcPerNode")
    trainer.data["resources"] = trainer.take("resourcesPerNode", {})
    if "image" not in trainer.data:
        trainer.refuse("image", None, "the image: what the runtime says is not known here")
    _container(trainer, run, torchrun=False, procs=None if procs is None else str(procs))
    if mine := trainer.rest():
        run.options["pod_template"] = {"spec": {"containers": [{"name": "node", **mine}]}}


def _elasticjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "elasticjob"
    words = {
        "distributionStrategy": "distribution_strategy",
        "optimizeMode": "optimize_mode",
        "brainService": "brain_service",
        "resourceLimits": "resource_limits",
        "envs": "envs",
        "suspend": "suspend",
        "enableDynamicSharding": "enable_dynamic_sharding",
        "enableElasticScheduling": "enable_elastic_scheduling",
    }
    for theirs, ours in words.items():
        if (value := part.take(theirs)) is not None:
            run.options[ours] = value
    replicas = part.part("replicaSpecs")
    for name in [*replicas.data]:
        one = replicas.part(name)
        one.drop("restartPolicy")
        if name == "worker":
            run.number(one.take("replicas", 1))
            if (limit := one.take("restartCount")) is not None:
                run.restart["backoff_limit"] = limit
            run.options |= _scheduling(one)
            _template(one.part("template"), run, "main", theirs="main")
        elif name == "dlrover-master":
            one.drop("replicas", "restartCount")
            template = _named_main(one.part("template").rest())
            for word in ("command", "args"):
                if template["spec"]["containers"][0].get(word):
                    why = "nothing: it names the job, of which each attempt has one of its own"
                    one.refuse(f"template.spec.containers.0.{word}", "a command", why)
            run.options["master"] = {"pod_template": template}
        else:
            template = _named_main(one.part("template").rest())
            main = template["spec"]["containers"][0]
            run.options.setdefault("replicas", {})[name] = {
                "replicas": one.take("replicas", 1),
                "command": [*main.pop("command", []), *main.pop("args", [])],
                "restart_count": one.take("restartCount", 3),
                "pod_template": template,
                **_scheduling(one),
            }


def _scheduling(part: Part) -> dict[str, Any]:
    words = {"autoScale": "auto_scale", "restartTimeout": "restart_timeout", "priority": "priority"}
    found = {ours: part.take(theirs) for theirs, ours in words.items()}
    return {name: value for name, value in found.items() if value is not None}


def _named_main(template: dict[str, Any]) -> dict[str, Any]:
    """With its first container called as the operator wants it, and as ours is that it is laid over."""
    first, *others = template["spec"]["containers"]
    spec = {**template["spec"], "containers": [{**first, "name": "main"}, *others]}
    return {**template, "spec": {key: value for key, value in spec.items() if key != "restartPolicy"}}


def _pytorchtrainingjob(part: Part, run: Run) -> None:
    run.plain["engine"] = "pytorchtrainingjob"
    specs = part.take("replicaSpecs", [])
    if len(specs) != 1:
        part.refuse("replicaSpecs", len(specs), "one entry: all workers of a run are alike")
        return
    one = Part(specs[0], "spec.replicaSpecs.0", part.problems)
    one.drop("type")
    count = one.take("replicas", 1)
    run.restart["policy"] = one.take("restartPolicy", "Never")
    if (weight := one.take("scalingWeight")) is not None:
        run.options["scaling_weight"] = weight
    torchrun = part.part("torchrunConfig")
    guide = "enable" in torchrun.data or "minNodes" in torchrun.data
    on = bool(torchrun.take("enabled") or torchrun.take("enable"))
    least = torchrun.take("minNodes")
    elastic = part.part("elastic")
    if elastic.take("enabled"):
        count = elastic.take("expectedReplicas", count)
        run.number(count, elastic.take("minReplicas"), elastic.take("maxReplicas"))
    else:
        elastic.drop("minReplicas", "maxReplicas", "expectedReplicas")
        run.number(count, least, count if least else None)
    if (limit := torchrun.take("maxRestarts")) is not None:
        run.restart["backoff_limit"] = limit
    if (backend := torchrun.take("rdzvBackend")) is not None:
        run.options["rdzv_backend"] = backend
    if extra := torchrun.take("extraOptions"):
        run.options["torchrun_options"] = extra
    procs = torchrun.take("procPerNode")
    run.policy(part.part("runPolicy"), "cleanUpPolicy")
    scheduler = part.part("scheduler").part("t9kScheduler")
    for theirs, ours in (("queue", "queue"), ("priority", "queue_rank")):
        if (value := scheduler.take(theirs)) is not None:
            run.options[ours] = value
    board = part.part("tensorboardSpec")
    if board.data:
        run.options["tensorboard"] = {
            "image": board.take("image"),
            "log_filesets": board.take("trainingLogFilesets", []),
        }
    part.only("runMode", {}, why="nothing: say it as engine_options.debug or engine_options.pause")
    if guide:
        run.options["form"] = "guide"
    told = None if procs is None else str(procs)
    _template(one.part("template"), run, "python", theirs="python", torchrun=on, procs=told)
    one.end()


_KINDS: Mapping[tuple[str, Any], Callable[[Part, Run], None]] = {
    ("batch", "Job"): _job,
    ("kubeflow.org", "PyTorchJob"): _pytorchjob,
    ("trainer.kubeflow.org", "TrainJob"): _trainjob,
    ("elastic.iml.github.io", "ElasticJob"): _elasticjob,
    ("batch.tensorstack.dev", "PyTorchTrainingJob"): _pytorchtrainingjob,
}
