"""An ElasticJob of DLRover (elastic.iml.github.io/v1alpha1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.commands import Scope
from airflow_elastic.engines.kube.manifests.pods import take_template
from airflow_elastic.engines.kube.manifests.run_builder import RunBuilder
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.engines.quantities import written
from airflow_elastic.spec.errors import ABSENT

_WORDS = {
    "distributionStrategy": "distribution_strategy",
    "optimizeMode": "optimize_mode",
    "brainService": "brain_service",
    "resourceLimits": "resource_limits",
    "envs": "envs",
    "suspend": "suspend",
    "enableDynamicSharding": "enable_dynamic_sharding",
    "enableElasticScheduling": "enable_elastic_scheduling",
}
_SCHEDULING = {"autoScale": "auto_scale", "restartTimeout": "restart_timeout", "priority": "priority"}

#: Fields that pods beside the workers take over from the workers, if they do not set them.
_OF_WORKERS = {
    "nodeSelector": "node_selector",
    "tolerations": "tolerations",
    "serviceAccountName": "service_account",
    "schedulerName": "scheduler",
}

_RESTARTS = 3  # DLRover's default

#: Variables that DLRover's master sets in a worker's pod, except for the number of workers.
_PER_POD = frozenset(
    (
        *("NODE_RANK", "NODE_ID", "NODE_TYPE", "WORKER_RANK", "WORKER_TYPE", "WORKER_ID", "RANK", "POD_IP"),
        *("POD_NAME", "DLROVER_MASTER_ADDR", "MASTER_ADDR", "MASTER_PORT", "ELASTIC_JOB_NAME", "JOB_UID"),
    )
)


def read_elasticjob(part: Section, run: RunBuilder, others: Sequence[Mapping[str, Any]] = ()) -> None:
    """Workers train; the job master and other processes run beside them."""
    run.plain["engine"] = "elasticjob"
    if limits := part.data.get("resourceLimits"):
        part.data["resourceLimits"] = {name: written(amount) for name, amount in limits.items()}
    for theirs, ours in _WORDS.items():
        run.option(ours, part, theirs)
    replicas = part.part("replicaSpecs")
    if "worker" not in replicas.data:
        replicas.refuse("worker", ABSENT, "this field is required: the workers train")
    for name in [*replicas.data]:
        one = replicas.part(name)
        one.drop("restartPolicy")
        if name == "worker":
            _take_workers(one, run)
        elif name == "dlrover-master":
            _take_master(one, run)
        else:
            _take_others(one, run, name)
    for beside in (run.options.get("master", {}), *run.options.get("replicas", {}).values()):
        if "pod_template" in beside:
            _set_apart(beside["pod_template"]["spec"], run)


def _take_workers(one: Section, run: RunBuilder) -> None:
    count = one.take("replicas", 1)
    run.number(count, one.at("replicas"))
    run.set_field("restart.backoff_limit", one.take("restartCount"), one.at("restartCount"))
    for theirs, ours in _SCHEDULING.items():
        run.option(ours, one, theirs)
    scope = Scope({"WORKER_NUM": str(count), "NODE_NUM": str(count)}, _PER_POD)
    take_template(one.part("template"), run, "main", theirs="main", operator=scope)


def _take_master(one: Section, run: RunBuilder) -> None:
    """Our options set its command, and the run decides what follows its failure."""
    one.only("replicas", 0, 1, why="1: a job has one master")
    one.drop("restartCount")
    template = _named_main(one)
    if template is None:
        return
    main = template["spec"]["containers"][0]
    for word in ("command", "args"):
        if words := main.pop(word, None):
            why = "nothing: it names the job, and each attempt has its own job"
            one.refuse(f"template.spec.containers.0.{word}", words, why)
    run.set_field("engine_options.master.pod_template", template, one.at("template"))
    if main.get("resources"):  # they are in the template; our default would stand beside them
        run.set_field("engine_options.master.resources", {}, one.at("template.spec.containers.0.resources"))


def _take_others(one: Section, run: RunBuilder, name: str) -> None:
    template = _named_main(one)
    if template is None:
        return
    main = template["spec"]["containers"][0]
    told = {
        "replicas": one.take("replicas", 1),
        "command": [*main.pop("command", []), *main.pop("args", [])],
        "restart_count": one.take("restartCount", _RESTARTS),
        "pod_template": template,
        **{ours: value for theirs, ours in _SCHEDULING.items() if (value := one.take(theirs)) is not None},
    }
    run.set_field(f"engine_options.replicas.{name}", told, one.path)
    run.source[f"engine_options.replicas.{name}.command"] = one.at("template.spec.containers.0.command")


def _set_apart(pod: dict[str, Any], run: RunBuilder) -> None:
    """Keep the workers' values out of a pod beside them, which it would get where its template is silent."""
    for theirs, ours in _OF_WORKERS.items():
        if ours in run.options:
            pod.setdefault(theirs, None)
    if pod.get("nodeSelector") is not None:
        pod["nodeSelector"] = {**dict.fromkeys(run.options.get("node_selector", {})), **pod["nodeSelector"]}
    if "image_pull_policy" in run.options:
        pod["containers"][0].setdefault("imagePullPolicy", None)


def _named_main(one: Section) -> dict[str, Any] | None:
    """The template with the operator's name for its first container, as in the template that it is merged into."""
    template = one.part("template").rest()
    spec = template.get("spec", {})
    if not spec.get("containers"):
        one.refuse("template.spec.containers", ABSENT, "this field is required")
        return None
    first, *others = spec["containers"]
    named = {**spec, "containers": [{**first, "name": "main"}, *others]}
    return {**template, "spec": {key: value for key, value in named.items() if key != "restartPolicy"}}
