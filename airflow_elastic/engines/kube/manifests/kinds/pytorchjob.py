"""A PyTorchJob of the training-operator (kubeflow.org/v1)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_elastic.engines.kube.manifests.commands import Scope
from airflow_elastic.engines.kube.manifests.pods import take_template
from airflow_elastic.engines.kube.manifests.run_builder import Procs, RunBuilder, whole
from airflow_elastic.engines.kube.manifests.section import Section
from airflow_elastic.spec.errors import ABSENT

#: Defaults that the operator's code sets, and not its schema.
_RESTART_POLICY, _PROCS = "OnFailure", "auto"

_PER_POD = frozenset(
    (
        *("RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
        *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_MAX_RESTARTS"),
    )
)


def read_pytorchjob(part: Section, run: RunBuilder, others: Sequence[Mapping[str, Any]] = ()) -> None:
    """Master and Worker must be alike: the Master is worker 0."""
    run.plain["engine"] = "pytorchjob"
    replicas = part.part("pytorchReplicaSpecs")
    names = [name for name in ("Master", "Worker") if name in replicas.data]
    if not names:
        replicas.refuse("Worker", ABSENT, "this field is required: a Worker or a Master")
        return
    counts: dict[str, int] = {}
    templates: dict[str, Section] = {}
    policies: dict[str, str] = {}
    for name in names:
        one = replicas.part(name)
        counts[name] = one.take("replicas", 1)
        policies[name] = one.take("restartPolicy", _RESTART_POLICY)
        templates[name] = one.part("template")
        run.set_field("restart.policy", policies[name], one.at("restartPolicy"))
    if counts.get("Master", 1) != 1:
        replicas.refuse("Master.replicas", counts["Master"], "1")
    if len(names) == 2:
        _refuse_unlike(replicas, templates, policies)
        if counts["Worker"] == 0:
            names = ["Master"]
        else:
            run.options["master"] = True
        templates["Worker" if names == ["Master"] else "Master"].rest()
    of_worker = replicas.at(f"{names[-1]}.replicas")
    before = 1 if len(names) == 2 else 0
    count = sum(counts.values())
    elastic = part.part("elasticPolicy")
    procs = _procs(part, elastic)
    _take_elastic(elastic, run, count, before, of_worker)
    policy = part.part("runPolicy")
    limit = elastic.data.get("maxRestarts")
    run.policy(policy, "cleanPodPolicy")
    if limit is not None and "backoff_limit" not in run.plain["restart"]:
        run.set_field("restart.backoff_limit", limit, elastic.at("maxRestarts"))
    told = elastic.rest()
    if told or "min" in run.workers:
        run.set_field("engine_options.elastic_policy", told, elastic.path)
        run.options.setdefault("elastic_policy", {})
    run.option("ttl_seconds", policy, "ttlSecondsAfterFinished")
    run.set_field("engine_options.run_policy", policy.rest() or None, policy.path)
    scope = _scope(run, count, procs)
    take_template(templates[names[-1]], run, "pytorch", theirs="pytorch", procs=procs, operator=scope)


def _refuse_unlike(replicas: Section, templates: Mapping[str, Section], policies: Mapping[str, str]) -> None:
    if policies["Master"] != policies["Worker"]:
        allowed = f"{policies['Worker']}, as of the Worker: one policy holds for the whole run"
        replicas.refuse("Master.restartPolicy", policies["Master"], allowed)
    if not _alike(templates["Master"].data, templates["Worker"].data):
        allowed = (
            f"as Worker.template: all workers of a run are alike (they differ in {_difference(templates)})"
        )
        replicas.refuse("Master.template", "another one", allowed)


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same in JSON, where 1 is not true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _difference(templates: Mapping[str, Section]) -> str:
    """The first path where two templates differ."""
    one, other, path = templates["Master"].data, templates["Worker"].data, ""
    while isinstance(one, Mapping | list) and type(one) is type(other):
        keys = [*one, *other] if isinstance(one, Mapping) else [*range(max(len(one), len(other)))]
        key = next(k for k in keys if not _alike(_get(one, k), _get(other, k)))
        one, other, path = _get(one, key), _get(other, key), f"{path}.{key}"
    return path.lstrip(".")


def _get(found: Any, key: Any) -> Any:
    if isinstance(found, Mapping):
        return found.get(key)
    return found[key] if key < len(found) else None


def _procs(part: Section, elastic: Section) -> Procs:
    """`nprocPerNode`, or the older field of the elasticPolicy; without both the operator takes auto."""
    procs, older = part.take("nprocPerNode"), elastic.take("nProcPerNode")
    if None not in (procs, older) and str(procs) != str(older):
        elastic.refuse("nProcPerNode", older, f"nothing beside spec.nprocPerNode, which is {procs}")
    if procs is None and older is not None:
        return Procs(older, elastic.at("nProcPerNode"))
    return Procs(_PROCS if procs is None else procs, part.at("nprocPerNode"))


def _take_elastic(elastic: Section, run: RunBuilder, count: int, before: int, source: str) -> None:
    """The fewest and the most workers; the operator takes one for both if only one is given."""
    least, most = elastic.take("minReplicas"), elastic.take("maxReplicas")
    paths = [elastic.at("minReplicas"), elastic.at("maxReplicas")]
    if least is None and most is not None:
        least, paths[0] = most, paths[1]
    elif most is None and least is not None:
        most, paths[1] = least, paths[0]
    bounds = [None if n is None else n + before for n in (least, most)]
    run.number(count, source, bounds[0], bounds[1], (paths[0], paths[1]))


def _scope(run: RunBuilder, count: int, procs: Procs) -> Scope:
    """The variables that the operator sets in every pod with the same value."""
    values = {"PET_NPROC_PER_NODE": procs.words or _PROCS}
    if "min" in run.workers:
        values["PET_NNODES"] = f"{run.workers['min']}:{run.workers['max']}"
        return Scope(values, _PER_POD | {"WORLD_SIZE"})
    told = whole(procs.words or "")
    ranks = 1 if told is None else told
    return Scope({**values, "PET_NNODES": str(count), "WORLD_SIZE": str(count * ranks)}, _PER_POD)
