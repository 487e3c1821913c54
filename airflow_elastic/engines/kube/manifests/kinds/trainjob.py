"""A TrainJob of the Kubeflow Trainer 2 (trainer.kubeflow.org/v1alpha1), and its runtime.

The runtime's settings are known if its object is in the same file; otherwise the TrainJob must contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.commands import Scope
from airflow_elastic.engines.kube.manifests.kinds.job import NOT_NOW
from airflow_elastic.engines.kube.manifests.pods import take_container
from airflow_elastic.engines.kube.manifests.run_builder import Procs, RunBuilder, is_device
from airflow_elastic.engines.kube.manifests.section import Section, name_of
from airflow_elastic.engines.kube.manifests.tables import RUNTIME
from airflow_elastic.engines.quantities import written
from airflow_elastic.spec.errors import ABSENT, Problem, SpecError

_NODE = "node"
_PER_POD = frozenset(("PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT", "JOB_COMPLETION_INDEX"))


def read_trainjob(part: Section, run: RunBuilder, others: Sequence[Mapping[str, Any]] = ()) -> None:
    """Fields that are only in its runtime stay there, except image and command, which the agent replaces."""
    run.plain["engine"] = "trainjob"
    ref = part.part("runtimeRef")
    ref.drop("apiGroup")
    name, kind = ref.take("name"), ref.take("kind", "ClusterTrainingRuntime")
    run.set_field("engine_options.runtime", {"name": name, "kind": kind}, ref.path)
    part.only("suspend", False, why=NOT_NOW)
    run.limits(part)
    for word in ("labels", "annotations"):
        for key, value in part.take(word, {}).items():
            told = run.options.setdefault(word, {})
            if told.setdefault(key, value) != value:
                part.refuse(
                    f"{word}.{key}", value, f"{told[key]!r}, as in metadata.{word}: both are the run's"
                )
            run.source.setdefault(f"engine_options.{word}.{key}", f"{part.at(word)}.{key}")
    runtime = _runtime(name, kind, others)
    trainer = part.part("trainer")
    given = "numNodes" in trainer.data
    run.number(trainer.take("numNodes", runtime.nodes), trainer.at("numNodes") if given else runtime.at_nodes)
    trainer.data["resources"] = trainer.take("resourcesPerNode", {})
    procs = _procs(trainer, run, runtime)
    for word in ("image", "command", "args"):
        if word not in trainer.data and word in runtime.container:
            trainer.data[word] = runtime.container[word]
            run.source[f"engine_options.{word}"] = f"{runtime.title}: {runtime.path}.{word}"
    missing = [word for word in ("image", "command") if not trainer.data.get(word)]
    if missing and not runtime.known:
        text = (
            f"this field is required, or the {kind} {name} in the same file, behind a line ---. "
            f"To get it: kubectl get {kind.lower()} {name} -o yaml"
        )
        for word in missing:
            trainer.refuse(word, ABSENT, text)
        trainer.rest()
        return
    values = {one["name"]: one["value"] for one in runtime.container.get("env", []) if one.get("value")}
    unknown = {one["name"] for one in runtime.container.get("env", []) if "valueFrom" in one}
    nodes = str(run.workers["count"])
    operator = {**values, "PET_NNODES": nodes, **procs.known()}
    scope = Scope(operator, _PER_POD | unknown, bool(runtime.container.get("envFrom")))
    take_container(trainer, run, torchrun=False, procs=procs, operator=scope)
    run.set_field(
        "engine_options.pod_template.spec",
        {"containers": [{"name": _NODE, **mine}]} if (mine := trainer.rest()) else None,
        trainer.path,
    )


def _procs(trainer: Section, run: RunBuilder, runtime: _Runtime) -> Procs:
    """`numProcPerNode`; or the runtime's number; or Trainer's default: GPUs, or the requested processors."""
    path, given = trainer.at("numProcPerNode"), trainer.take("numProcPerNode")
    resources = trainer.data["resources"] or runtime.container.get("resources", {})
    given = runtime.procs if given is None else given
    if given not in (None, "auto", "cpu"):
        return Procs(given, path)
    of_runtime = trainer.data["resources"] == {} and runtime.known
    devices = [n for part in ("limits", "requests") for n in resources.get(part) or {} if is_device(n)]
    if devices and given != "cpu":
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        return Procs(written(asked[devices[0]]) if of_runtime else "auto", path, given=False)
    if resources or runtime.known:
        return Procs(run.processors(resources), path, given=False)
    why = "a number of ranks, or resourcesPerNode, from which Trainer takes it: the runtime's are not known here"
    return Procs(given, path, refusal=why, given=False)


class _Runtime:
    """The known parts of a runtime: all, or nothing."""

    def __init__(self, body: Mapping[str, Any] | None, title: str) -> None:
        self.title, self.known = title, body is not None
        spec = (body or {}).get("spec", {})
        policy = spec.get("mlPolicy", {})
        self.nodes = policy.get("numNodes", 1)
        self.at_nodes = f"{title}: spec.mlPolicy.numNodes" if self.known else "spec.trainer.numNodes"
        self.procs = policy.get("torch", {}).get("numProcPerNode")
        self.container: Mapping[str, Any] = {}
        self.path = "spec.template.spec.replicatedJobs"
        for i, job in enumerate(spec.get("template", {}).get("spec", {}).get("replicatedJobs", [])):
            pod = job.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
            for k, one in enumerate(pod.get("containers", [])):
                if job["name"] == _NODE and one.get("name") == _NODE:
                    self.container = one
                    self.path += f".{i}.template.spec.template.spec.containers.{k}"


def _runtime(name: str, kind: str, others: Sequence[Mapping[str, Any]]) -> _Runtime:
    title = f"{kind} {name}"
    for one in others:
        if one.get("kind") == kind and name_of(one) == name:
            problems: list[Problem] = []
            body = RUNTIME(one, "", problems)
            if problems:
                raise SpecError(*(problem.at(f"{title}: {problem.path}") for problem in problems))
            return _Runtime(body, title)
    return _Runtime(None, title)
